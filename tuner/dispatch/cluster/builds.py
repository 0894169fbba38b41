"""The build slots of all machines, and the queue for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tuner.core.problem.op_kinds import spelled
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Preparation, Problem
from tuner.core.trial.outcome import Rejected, Stage
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.lane import ClusterLane
from tuner.dispatch.cluster.members import Lost, Member, lacking
from tuner.errors import WorkerError

#: Maximum number of attempts to build a candidate when workers are lost.
MAX_ATTEMPTS = 5


@dataclass(kw_only=True)
class _Build:
    """A candidate in the queue, or at a worker."""

    call: messages.PrepareCall
    payload: bytes
    future: Future[Preparation]
    #: The lane whose card it is for.
    lane: ClusterLane
    #: Workers that were lost while building it.
    tried: list[Member] = field(default_factory=list)


class BuildLine:
    """Candidates of all lanes, first come, first served; used in one event loop, except `prepare`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, members: Callable[[], Iterable[Member]]) -> None:
        self._loop = loop
        self._members = members
        self._waiting: deque[_Build] = deque()
        self._tasks: dict[asyncio.Task[None], _Build] = {}
        self._is_closed = False

    @property
    def num_places(self) -> int:
        """The number of build slots on all machines, at least 1."""
        return max(1, sum(member.announcement.num_places for member in self._members()))

    def prepare(self, lane: ClusterLane, problem: Problem, candidate: Candidate) -> Future[Preparation]:
        """Queues a candidate; may be called from any thread."""
        call = messages.PrepareCall(target=lane.target, problem=problem, candidate=candidate)
        build = _Build(call=call, payload=messages.encode(call), future=Future(), lane=lane)

        def enter() -> None:
            if self._is_closed:
                build.future.cancel()
            else:
                self._waiting.append(build)
                self.advance()

        try:
            self._loop.call_soon_threadsafe(enter)
        except RuntimeError:  # the loop has ended
            build.future.cancel()
        return build.future

    def advance(self) -> None:
        """Sends out all builds for which there is a free slot."""
        still_waiting = deque[_Build]()
        while self._waiting:
            build = self._waiting.popleft()
            if lacks := lacking(build.call, build.lane.kinds) if build.lane.member else set():
                what = f"the worker of {build.lane.uuid} lacks {spelled(lacks)}"
                reason = f"{what}: install the package that provides it there, in the same version as here"
                if build.tried or build.future.set_running_or_notify_cancel():
                    build.future.set_result(Rejected(stage=Stage.VERIFY, reason=reason))
                continue
            member = self._choose(build)
            if member is None:
                still_waiting.append(build)
            elif build.tried or build.future.set_running_or_notify_cancel():
                member.num_building += 1
                task = self._loop.create_task(self._build(build, member))
                self._tasks[task] = build
                task.add_done_callback(lambda done: self._tasks.pop(done, None))
        self._waiting = still_waiting

    def _choose(self, build: _Build) -> Member | None:
        """The card's own machine if it has a free slot, since its builds need not be transferred; otherwise the least
        busy machine.
        """
        home = build.lane.member
        if home is not None and home.may_build and home not in build.tried:
            return home
        compiler = build.lane.environment().cuda
        able = [one for one in self._members() if one.may_build and one.can_build_for(build.call, compiler)]

        def burden(one: Member) -> tuple[int, float]:
            return build.tried.count(one), one.num_building / one.announcement.num_places

        return min(able, key=burden, default=None)

    async def _build(self, build: _Build, member: Member) -> None:
        try:
            preparation = await member.ask(build.call, build.payload)
        except (Lost, messages.NotUnderstood) as error:
            build.tried.append(member)
            if len(build.tried) < MAX_ATTEMPTS:
                self._waiting.appendleft(build)
            else:
                build.future.set_exception(WorkerError(f"{MAX_ATTEMPTS} workers were lost while building it: {error}"))
        except Exception as error:
            build.future.set_exception(error)
        else:
            build.future.set_result(preparation)
        finally:
            member.num_building -= 1
            self._loop.call_soon(self.advance)

    def close(self) -> None:
        """Closes the queue; called in the loop."""
        self._is_closed = True
        for build in self._waiting:
            if not build.future.cancel():
                build.future.set_exception(WorkerError("the dispatcher was closed"))
        self._waiting.clear()
        for task, build in list(self._tasks.items()):
            task.cancel()
            if not build.future.done():
                build.future.set_exception(WorkerError("the dispatcher was closed"))


class ClusterBuilds:
    """A `BuildPool` for one lane: the build slots of all machines."""

    def __init__(self, line: BuildLine, lane: ClusterLane) -> None:
        self._line = line
        self._lane = lane

    @property
    def num_places(self) -> int:
        """How many builds run at a time, on all machines."""
        return self._line.num_places

    def prepare(self, problem: Problem, candidate: Candidate) -> Future[Preparation]:
        """Queues one candidate."""
        return self._line.prepare(self._lane, problem, candidate)
