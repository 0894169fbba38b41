"""Parts of a layer on a card, in sequence in one graph: products, then the part that begins with an attention.

Each part is a separate problem, as in its job, so an attention does not read the output of the products before it. The
sizes and the order of launches are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.workers.gpu.launching.squares import InputSquares
from tuner.workers.gpu.library.op_library import OpLibrary, TorchChainLibrary, own_libraries, stream_at
from tuner.workers.gpu.library.runners import Runner, runner_of
from tuner.workers.gpu.library.vendor import Vendor, open_vendor
from tuner.workers.gpu.measuring.algorithms import pick_algorithms
from tuner.workers.gpu.measuring.problem import ProblemOnCard
from tuner.workers.gpu.measuring.timing import Timer
from tuner.workers.gpu.own.runner import OwnRunner
from tuner.workers.gpu.session import Kernels
from tuner.workers.gpu.tensors.check import check_numbers
from tuner.workers.gpu.tensors.compare import Comparer
from tuner.workers.gpu.tensors.data import ProblemData
from tuner.workers.gpu.tensors.op_data import RunOperands
from tuner.workers.protocol.messages import Work
from tuner.workers.protocol.stopwatch import Stopwatch
from tuner.workers.timing.clocks import drop_reasons
from tuner.workers.timing.rounds import MIN_KEPT

#: Takes the address of an attention's queries and a stream, and enqueues the part before that attention.
InFront = Callable[[int, int], None]


class Behind:
    """Runs the preceding part, then our launches; a `Runner`."""

    def __init__(self, in_front: InFront, inner: Runner, queries: str) -> None:
        """`queries` is the name of the tensor that the attention reads."""
        self._in_front, self._inner, self._queries = in_front, inner, queries

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues both."""
        self._in_front(ops.arrays[self._queries].data.ptr, stream)
        self._inner.enqueue(ops, stream)

    def abort_record(self) -> str | None:
        """The abort record of the launches after the preceding part."""
        return self._inner.abort_record()

    def overwritten(self) -> str:
        """Says which memory of the launches after the preceding part was overwritten."""
        return self._inner.overwritten()

    def poison(self) -> None:
        """Poisons the private memory of the launches after the preceding part."""
        self._inner.poison()


class LibraryBehind(TorchChainLibrary):
    """Runs the preceding part, then the library's attention and products."""

    def __init__(
        self, vendor: Vendor, data: ProblemData, own: Sequence[OpLibrary], tools: Any, in_front: InFront
    ) -> None:
        self._in_front, self._queries = in_front, data.workload.launch_ops[0].source
        super().__init__(vendor, data, own, tools)

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues both."""
        self._in_front(ops.arrays[self._queries].data.ptr, stream)
        super().enqueue(ops, stream)

    def _run_captured(self, torch: Any, slots: Sequence[RunOperands], made: Any, slot: int) -> Any:
        given = slots[slot % len(slots)]
        self._in_front(given.arrays[self._queries].data.ptr, torch.cuda.current_stream().cuda_stream)
        return super()._run_captured(torch, slots, made, slot)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One of our ways to run a layer: the launches of each part, the attention's last."""

    name: str
    works: tuple[Work, ...]


class LayerOnCard:
    """A layer's parts on the card: products, then the part that begins with an attention."""

    def __init__(self, problems: Sequence[Problem], tools_cubin: bytes) -> None:
        """`problems` has one problem per part, cold and in burst; the last part has the attention."""
        self._tools = cupy.cuda.function.Module()
        self._tools.load(tools_cubin)
        vendor = open_vendor()
        *before, problem = problems
        self._before = [ProblemOnCard(one, self._tools, vendor, None) for one in before]
        l2_bytes = int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"])
        self.data = ProblemData(problem, l2_bytes, Stopwatch())
        slots = range(self.data.num_slots)
        #: Preceding parts, by the address of the attention's queries.
        self._queries = problem.workload.launch_ops[0].source
        self._slots = {int(self.data.slot_ops(slot).arrays[self._queries].data.ptr): slot for slot in slots}
        self.timer = Timer(self.data, self._tools, None)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        own = own_libraries(vendor, self.data, self._tools)
        self.library = LibraryBehind(vendor, self.data, own, self._tools, self._library_in_front)
        self.picked = pick_algorithms(self.library, self.timer)

    def checked(self, way: Way, kernels: Kernels) -> tuple[Runner, float]:
        """The runner of one of our ways, and its relative error.

        Raises:
            WrongNumbers, Aborted, LaunchRefused: the way cannot be timed.
        """
        *before, work = way.works
        runners, worst = list[Runner](), 0.0
        for prepared, one in zip(self._before, before, strict=True):
            runner = runner_of(one, kernels.load(one), input_squares=prepared.input_squares)
            run = partial(prepared.run_once, runner)
            worst = max(worst, check_numbers(prepared.data, prepared.comparer, run, one))
            runners.append(runner)
        squares = InputSquares(self.data.workload, self._tools)
        products = runner_of(work, kernels.load(work), input_squares=squares) if work.shared else None
        inner = OwnRunner(kernels.load_own(work), products)
        worst = max(worst, check_numbers(self.data, Comparer(self._tools), partial(self._run_once, inner), work))
        return Behind(partial(self._in_front, runners), inner, self._queries), worst

    def check_library(self) -> float:
        """The relative error of the library's layer.

        Raises:
            WrongNumbers: its results are wrong.
        """
        work = Work(plan_kind=PlanKind.LIBRARY)
        return check_numbers(self.data, Comparer(self._tools), partial(self._run_once, self.library), work)

    def times_us(self, runners: Sequence[Runner], num_rounds: int) -> tuple[list[list[float]], int]:
        """Times all in turn: [runner][round] microseconds of the valid rounds, and the number of invalid rounds."""
        graphs = [self.timer.capture(runner) for runner in runners]
        tracks = self.timer.rounds(graphs, lambda tracks, _: len(tracks[0]) >= num_rounds)
        reasons = drop_reasons(tracks, self.data.problem.objective.regime)
        kept = [i for i, reason in enumerate(reasons) if reason is None]
        if len(kept) < min(MIN_KEPT, num_rounds):
            kept = list(range(len(reasons)))
        return [[track[i].time_us for i in kept] for track in tracks], len(reasons) - len(kept)

    def _run_once(self, runner: Runner, ops: RunOperands) -> str | None:
        runner.poison()
        cupy.cuda.Device().synchronize()  # the NaNs are written on another stream
        with self._stream:
            runner.enqueue(ops, self._stream.ptr)
        self._stream.synchronize()
        return runner.abort_record()

    def _in_front(self, runners: Sequence[Runner], q: int, stream: int) -> None:
        """Enqueues the part before the attention whose queries are at `q`; there is none in checks."""
        if (slot := self._slots.get(q)) is None:
            return
        for prepared, runner in zip(self._before, runners, strict=True):
            runner.enqueue(prepared.data.slot_ops(slot), stream)

    def _library_in_front(self, q: int, stream: int) -> None:
        with stream_at(stream) if stream else cupy.cuda.Stream.null:
            self._in_front([one.library for one in self._before], q, stream)
