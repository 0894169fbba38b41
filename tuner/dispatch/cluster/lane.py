"""The queue for a card of another machine. It outlives the worker; while there is none, the card is in quarantine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Prepared, Problem, Quarantine
from tuner.core.trial.outcome import Outcome
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.members import Lost, Member
from tuner.errors import Quarantined, WorkerError
from tuner.workers.builder.shipping import ShippedKernel
from tuner.workers.simulated.evaluator import PreparedModel

#: Why a user's own program has no time.
_STAYS = "your own programs run only on cards of their own machine, and this card belongs to a worker"


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A call in the queue."""

    call: messages.CardCall
    future: Future[Any]


class ClusterLane:
    """A `MeasureLane` for a card, whichever worker has it. Calls are sent to it one at a time, so that a call cancelled
    before its turn is never sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, card: messages.CardInfo) -> None:
        self._loop = loop
        self.uuid = card.uuid
        self._target = card.target
        self._environment = card.environment
        self._kinds: Mapping[str, int] = {}
        self._line: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._member: Member | None = None
        #: Read by any thread: why the card is not usable, and since when no worker has it, with the reason.
        self._unfit: Quarantine | None = None
        self._away: Quarantine | None = Quarantine(reason=f"no worker has {card.uuid}", since=time.time())
        self._is_closed = False
        self._task = loop.create_task(self._serve(), name=f"lane of {card.uuid}")

    @property
    def target(self) -> Target:
        """The target that it measures on."""
        return self._target

    @property
    def member(self) -> Member | None:
        """The worker that has the card, if there is one."""
        return self._member

    @property
    def kinds(self) -> Mapping[str, int]:
        """The kinds in the worker's last announcement; none before a worker had the card."""
        return self._kinds

    @property
    def quarantine(self) -> Quarantine | None:
        """Why nothing is measured now."""
        return self._away or self._unfit

    def environment(self) -> Environment:
        """The environment in the worker's last announcement."""
        return self._environment

    def attach(self, member: Member, card: messages.CardInfo) -> None:
        """A worker now has the card."""
        self._member, self._environment, self._kinds = member, card.environment, member.announcement.kinds
        self._unfit = self._away = None

    def detach(self, why: str) -> None:
        """No worker has it now."""
        self._member = None
        if self._away is None:
            self._away = Quarantine(reason=f"{self.uuid} has no worker: {why}", since=time.time())

    def probe(self) -> Future[None]:
        """Queues a probe of the card."""
        return self._send(messages.ProbeCall(card=self.uuid))

    def measure(self, problem: Problem, prepared: Prepared, incumbent_speedup: float | None = None) -> Future[Outcome]:
        """Queues one candidate.

        Raises:
            TypeError: the prepared candidate cannot be sent.
        """
        if not isinstance(prepared, PreparedModel | ShippedKernel):
            raise TypeError(f"a {type(prepared).__name__} cannot be sent to a worker")
        call = messages.MeasureCall(
            card=self.uuid, problem=problem, prepared=prepared, incumbent_speedup=incumbent_speedup
        )
        return self._send(call)

    def finals(
        self, problem: Problem, candidates: tuple[Candidate, ...], num_rounds: int, *, torch_compile: bool = False
    ) -> Future[FinalsTimes]:
        """Queues the finals."""
        call = messages.FinalsCall(
            card=self.uuid,
            problem=problem,
            candidates=candidates,
            num_rounds=num_rounds,
            torch_compile=torch_compile,
        )
        return self._send(call)

    def beside(
        self,
        problem: Problem,
        candidates: tuple[Candidate, ...],
        baselines: tuple[Baseline, ...],
        num_rounds: int,
        winner: int,
    ) -> Future[tuple[BaselineTime, ...]]:
        """Returns reasons instead of times, since a user's own program cannot be sent to a worker."""
        future = Future[tuple[BaselineTime, ...]]()
        future.set_result(tuple(BaselineTime(name=one.name, reason=_STAYS) for one in baselines))
        return future

    def energy(self, problem: Problem, candidate: Candidate) -> Future[EnergyReport]:
        """Queues the measurement of a candidate's energy."""
        return self._send(messages.EnergyCall(card=self.uuid, problem=problem, candidate=candidate))

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...] | None) -> Future[CounterReport]:
        """Queues a measurement of a candidate's counters."""
        return self._send(messages.CountCall(card=self.uuid, problem=problem, candidate=candidate, metrics=metrics))

    def trace(self, problem: Problem, candidate: Candidate) -> Future[Trace]:
        """Queues a trace of a candidate."""
        return self._send(messages.TraceCall(card=self.uuid, problem=problem, candidate=candidate))

    def artifact(self, problem: Problem, candidate: Candidate, extra: dict[str, Any]) -> Future[ArtifactFiles]:
        """Queues building a candidate's files."""
        return self._send(messages.ArtifactCall(card=self.uuid, problem=problem, candidate=candidate, extra=extra))

    def close(self) -> None:
        """Closes the queue; called in the loop."""
        self._is_closed = True
        self._task.cancel()
        while not self._line.empty():
            self._line.get_nowait().future.cancel()

    def _send(self, call: messages.CardCall) -> Future[Any]:
        future = Future[Any]()
        waiting = _Waiting(call=call, future=future)

        def enter() -> None:
            if self._is_closed:
                future.cancel()
            else:
                self._line.put_nowait(waiting)

        try:
            self._loop.call_soon_threadsafe(enter)
        except RuntimeError:  # the loop has ended
            future.cancel()
        return future

    async def _serve(self) -> None:
        while True:
            waiting = await self._line.get()
            if not waiting.future.set_running_or_notify_cancel():
                continue
            try:
                answer = await self._ask(waiting.call)
            except asyncio.CancelledError:
                waiting.future.set_exception(WorkerError("the dispatcher was closed"))
                raise
            except Exception as error:
                waiting.future.set_exception(error)
            else:
                waiting.future.set_result(answer)

    async def _ask(self, call: messages.CardCall) -> Any:
        """The answer of the worker that has the card.

        Raises:
            Quarantined: no worker has it, or the worker was lost or sends invalid answers; or the card is not usable.
        """
        member = self._member
        if member is None:
            raise Quarantined(self._away.reason if self._away else f"no worker has {self.uuid}")
        try:
            answer = await member.ask(call, messages.encode(call))
        except messages.NotUnderstood as error:
            if member is self._member:
                self.detach(str(error))
            raise Quarantined(str(error)) from error
        except Lost as error:
            if member is self._member:
                self._note_unfit(str(error))
            raise Quarantined(str(error)) from error
        except Quarantined as error:
            self._note_unfit(str(error))
            raise
        if isinstance(call, messages.ProbeCall) and member is self._member:
            self._unfit = None
        return answer

    def _note_unfit(self, reason: str) -> None:
        since = self._unfit.since if self._unfit else time.time()
        self._unfit = Quarantine(reason=reason, since=since)
