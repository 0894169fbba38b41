"""A worker's answers to calls; it uses its cards and cores like a local dispatcher."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from tuner import __version__
from tuner.core.problem.gpu import Target
from tuner.core.problem.op_kinds import kind_versions
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Evaluator, Preparation, Prepared, Problem
from tuner.core.trial.limits import Limits
from tuner.core.trial.outcome import Outcome
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.preparers import Preparers
from tuner.dispatch.local import LocalBuilds, LocalDispatcher, LocalLane
from tuner.errors import WorkerError
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.builder.shipping import ShippedKernel, adopt, ship

#: Number of kernels prepared here whose proofs are kept, so that they are not proven again if they are measured here.
_NUM_KEPT = 32


class WorkerCalls:
    """What a worker does for a server. `answer` is called in one event loop; the work is done in threads."""

    def __init__(
        self,
        name: str,
        evaluators: Sequence[Evaluator],
        build_cache: Path,
        limits: Limits,
        *,
        num_places: int | None = None,
    ) -> None:
        """`name` is the worker's; `num_places` is how many builds may run at a time (chosen for this machine by
        default)."""
        self._build_cache = build_cache
        self._limits = limits
        self._dispatcher = LocalDispatcher(evaluators, num_places=num_places)
        self._preparers = Preparers(build_cache, limits, num_places)
        self._lanes: dict[str, tuple[LocalLane, LocalBuilds]] = {}
        numbers: dict[str, int] = {}
        for evaluator in evaluators:
            target_id = evaluator.target.id
            number = numbers[target_id] = numbers.get(target_id, -1) + 1
            uuid = evaluator.uuid or f"SIM-{name}-{len(self._lanes)}"
            lane = self._dispatcher.lane(target_id, number), self._dispatcher.builds(target_id, number)
            self._lanes[uuid] = lane
        self._kept: OrderedDict[tuple[Problem, Candidate, Target], PreparedKernel] = OrderedDict()
        self._kept_lock = threading.Lock()

    def announcement(self) -> messages.Announcement:
        """What the server must know about this worker each time it joins.

        Raises:
            WorkerError: an evaluator cannot state the machine of its figures.
        """
        cards = tuple(
            messages.CardInfo(uuid=uuid, target=lane.target, environment=lane.environment())
            for uuid, (lane, _) in self._lanes.items()
        )
        return messages.Announcement(
            joining=uuid4().hex,
            tuner_version=__version__,
            cards=cards,
            num_places=self._dispatcher.num_places,
            kinds=kind_versions(),
            compiler=self._preparers.compiler,
            limits=self._limits,
        )

    async def answer(self, payload: object) -> bytes:
        """The encoded answer to a call; never raises because of a peer's data."""
        try:
            call = messages.decode_call(payload)
            if isinstance(call, messages.PrepareCall):
                value: Any = await asyncio.wrap_future(self._prepare(call))
                if isinstance(value, PreparedKernel):
                    value = self._kept_and_shipped(call, value)
            elif isinstance(call, messages.MeasureCall):
                value = await self._measure(call)
            else:
                value = await asyncio.wrap_future(self._send(call))
            return messages.answer_with(call, value)
        except Exception as error:
            return messages.answer_error(error)

    def close(self) -> None:
        """Ends the evaluators."""
        self._dispatcher.close()
        self._preparers.close()

    def _prepare(self, call: messages.PrepareCall) -> Future[Preparation]:
        """The candidate, prepared by an evaluator of exactly its target if there is one, otherwise without a card."""
        for lane, builds in self._lanes.values():
            if lane.target == call.target:
                return builds.prepare(call.problem, call.candidate)
        builds = self._dispatcher.builds_by(self._preparers.of(call.target))
        return builds.prepare(call.problem, call.candidate)

    def _kept_and_shipped(self, call: messages.PrepareCall, prepared: PreparedKernel) -> ShippedKernel:
        with self._kept_lock:
            self._kept[call.problem, call.candidate, call.target] = prepared
            while len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)
        return ship(call.candidate, prepared)

    async def _measure(self, call: messages.MeasureCall) -> Outcome:
        lane, builds = self._card(call.card)
        prepared: Preparation = call.prepared
        if isinstance(prepared, ShippedKernel):
            with self._kept_lock:
                kept = self._kept.pop((call.problem, prepared.candidate, lane.target), None)
            prepared = kept or await self._taken_in(call.problem, prepared, builds)
        if not isinstance(prepared, Prepared):
            return prepared
        return await asyncio.wrap_future(lane.measure(call.problem, prepared, call.incumbent_speedup))

    async def _taken_in(self, problem: Problem, shipped: ShippedKernel, builds: LocalBuilds) -> Preparation:
        """A kernel that was built elsewhere, taken into the build cache and proven again here."""
        await asyncio.to_thread(adopt, shipped, self._build_cache)
        preparation = await asyncio.wrap_future(builds.prepare(problem, shipped.candidate))
        return replace(preparation, stage_s=dict(shipped.stage_s))

    def _send(self, call: messages.CardCall) -> Future[Any]:
        lane, _ = self._card(call.card)
        match call:
            case messages.FinalsCall():
                return lane.finals(call.problem, call.candidates, call.num_rounds, torch_compile=call.torch_compile)
            case messages.EnergyCall():
                return lane.energy(call.problem, call.candidate)
            case messages.CountCall():
                return lane.count(call.problem, call.candidate, call.metrics)
            case messages.TraceCall():
                return lane.trace(call.problem, call.candidate)
            case messages.ArtifactCall():
                return lane.artifact(call.problem, call.candidate, call.extra)
            case messages.ProbeCall():
                return lane.probe()
            case _:
                raise TypeError(f"{call.op} is not a known call")

    def _card(self, uuid: str) -> tuple[LocalLane, LocalBuilds]:
        try:
            return self._lanes[uuid]
        except KeyError:
            raise WorkerError(f"this worker has no card {uuid}") from None
