"""The server's side of a cluster: its workers, a lane for each card ever seen, and the shared builds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from distributed.comm.core import Comm, connect
from distributed.core import send_recv
from distributed.security import Security

from tuner import __version__
from tuner.core.problem.gpu import Target
from tuner.core.trial.evaluator import Quarantine
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.builds import BuildLine, ClusterBuilds
from tuner.dispatch.cluster.gate import check_announcement
from tuner.dispatch.cluster.lane import ClusterLane
from tuner.dispatch.cluster.members import SLACK_S, Member
from tuner.dispatch.cluster.nodes import ANNOUNCEMENT
from tuner.errors import NotFound, Unbelievable

log = logging.getLogger(__name__)

#: Polling interval for the list of workers, seconds, and the time limit of one poll.
POLL_S = 0.5
POLL_TIMEOUT_S = 10.0
#: How long a new dispatcher waits for its first poll.
FIRST_POLL_S = 5.0
#: How often a task is cancelled at shutdown, and the wait after each time, seconds.
_CANCELS, _CANCEL_S = 10, 1.0


class ClusterDispatcher:
    """A `Dispatcher` over the workers of a cluster. Everything happens in its thread with an event loop."""

    def __init__(
        self, scheduler: str, security: Security, *, slack_s: float = SLACK_S, first_poll_s: float = FIRST_POLL_S
    ) -> None:
        """Does not require a response from the scheduler, which is polled repeatedly. A worker may respond up to
        `slack_s` after its own deadlines."""
        self._scheduler = scheduler
        self._connection_args: dict[str, Any] = security.get_connection_args("client")
        self._slack_s = slack_s
        self._members: dict[str, Member] = {}
        #: The lanes by target and UUID, in the order in which their cards were first seen; a lane is never removed.
        self._lanes: dict[str, dict[str, ClusterLane]] = {}
        self._watchers: list[Callable[[Target, int], None]] = []
        #: Guards lanes and watchers.
        self._lock = threading.Lock()
        #: Announcements of refused workers by address, so that each is logged once.
        self._refused: dict[str, str] = {}
        self._trouble = ""
        self._loop = asyncio.new_event_loop()
        self._line = BuildLine(self._loop, lambda: list(self._members.values()))
        self._has_polled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._thread.start()
        self._has_polled.wait(first_poll_s)

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets seen since the start, without duplicates."""
        with self._lock:
            return tuple(next(iter(lanes.values())).target for lanes in self._lanes.values())

    @property
    def absence(self) -> str:
        """Why no card was seen since the start; empty if one was."""
        if self.targets:
            return ""
        trouble = self._trouble
        why = f"does not answer: {trouble}" if trouble else "has no worker with a card; start one with tuner worker"
        return f"the scheduler {self._scheduler} {why}"

    def num_workers(self, target_id: str) -> int:
        """How many cards of a target were seen; 0 if there were none."""
        with self._lock:
            return len(self._lanes.get(target_id, ()))

    def lane(self, target_id: str, worker: int = 0) -> ClusterLane:
        """The queue for a card.

        Raises:
            NotFound: no worker had that target since the start.
        """
        with self._lock:
            try:
                return list(self._lanes[target_id].values())[worker]
            except (KeyError, IndexError):
                here = ", ".join(self._lanes) or "none"
                raise NotFound(f"no worker serves {target_id}; available are: {here}") from None

    def builds(self, target_id: str, worker: int = 0) -> ClusterBuilds:
        """The build pool for a card.

        Raises:
            NotFound: same as for `lane`.
        """
        return ClusterBuilds(self._line, self.lane(target_id, worker))

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """Why a card, or every card of a target, cannot be measured on now."""
        with self._lock:
            lanes = list(self._lanes.get(target_id, {}).values())
        found = [lane.quarantine for lane in (lanes if worker is None else lanes[worker : worker + 1])]
        return found[0] if found and all(found) else None

    def watch(self, joined: Callable[[Target, int], None]) -> None:
        """Calls `joined` for each existing card, and for each new one."""
        with self._lock:
            present = [(lane.target, n) for lanes in self._lanes.values() for n, lane in enumerate(lanes.values())]
            self._watchers.append(joined)
        for target, number in present:
            joined(target, number)

    def close(self) -> None:
        """Leaves the cluster; the workers continue. Futures still open are cancelled."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        watching = self._loop.create_task(self._watch(), name="members")
        try:
            self._loop.run_forever()
        finally:
            watching.cancel()
            self._line.close()
            for lanes in self._lanes.values():
                for lane in lanes.values():
                    lane.close()
            for member in self._members.values():
                member.leave("the server closes")
            for _ in range(_CANCELS):  # `asyncio.wait_for` of Python 3.11 may swallow one
                tasks = asyncio.all_tasks(self._loop)
                for task in tasks:
                    task.cancel()
                if tasks:
                    self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _watch(self) -> None:
        """Polls the list of workers repeatedly."""
        comm: Comm | None = None
        while True:
            try:
                if comm is None or comm.closed():
                    comm = await connect(self._scheduler, deserialize=False, **self._connection_args)
                found = await asyncio.wait_for(send_recv(comm, op="identity"), POLL_TIMEOUT_S)
                self._take(found["workers"])
                self._note_trouble("")
            except asyncio.CancelledError:
                if comm is not None:
                    comm.abort()
                raise
            except Exception as error:  # the next poll may succeed, whatever the error
                if comm is not None:
                    comm.abort()
                comm = None
                self._note_trouble(f"{type(error).__name__}: {error}")
            self._has_polled.set()
            await asyncio.sleep(POLL_S)

    def _note_trouble(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("the scheduler %s does not answer: %s", self._scheduler, trouble)
        elif self._trouble and not trouble:
            log.warning("the scheduler %s answers again", self._scheduler)
        self._trouble = trouble

    def _take(self, workers: dict[str, dict[str, Any]]) -> None:
        """Updates members and lanes from the scheduler's list."""
        texts = {address: str(worker.get(ANNOUNCEMENT)) for address, worker in workers.items()}
        for address, member in list(self._members.items()):
            if texts.get(address) != member.text:
                self._part_with(member, "it left the cluster")
        for address, text in texts.items():
            if address not in self._members and self._refused.get(address) != text:
                self._welcome(address, text)
        for member in self._members.values():
            if member.distrust:
                self._detach(member, member.distrust)
            else:
                self._attach(member)
        self._line.advance()

    def _welcome(self, address: str, text: str) -> None:
        try:
            announcement = messages.decode_announcement(text)
            check_announcement(announcement)
        except (messages.NotUnderstood, Unbelievable) as error:
            self._refused[address] = text
            log.error(
                "the worker %s cannot be used by this server, version %s: %s; install the same version on both",
                address,
                __version__,
                error,
            )
            return
        self._members[address] = Member(address, text, announcement, self._connection_args, self._slack_s)
        cards = ", ".join(f"{card.target.id} {card.uuid}" for card in announcement.cards) or "no cards"
        log.info("%s joined: %s; %d build places", address, cards, announcement.num_places)

    def _attach(self, member: Member) -> None:
        """Assigns lanes to a member's cards, unless another member has them."""
        for card in member.announcement.cards:
            lane = self._lanes.get(card.target.id, {}).get(card.uuid)
            if lane is None:
                lane = ClusterLane(self._loop, card)
                lane.attach(member, card)
                self._add(lane)
            elif lane.member is None:
                lane.attach(member, card)

    def _add(self, lane: ClusterLane) -> None:
        with self._lock:
            lanes = self._lanes.setdefault(lane.target.id, {})
            lanes[lane.uuid] = lane
            number, watchers = len(lanes) - 1, list(self._watchers)
        for joined in watchers:
            joined(lane.target, number)

    def _detach(self, member: Member, why: str) -> None:
        for lanes in self._lanes.values():
            for lane in lanes.values():
                if lane.member is member:
                    lane.detach(why)

    def _part_with(self, member: Member, why: str) -> None:
        del self._members[member.address]
        log.warning("%s: %s", member.address, why)
        self._detach(member, why)
        member.leave(why)
