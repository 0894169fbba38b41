"""The plan kinds as one thing: something that enqueues the whole workload on a stream, over given operands."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, runtime_checkable

import cupy
from cuda.bindings import driver

from tuner.core.trial.library_recipe import LibraryRecipe

from ...protocol.messages import Work
from ...source.launch_args import OpBuffers, needs_co_residency
from ...source.launchable import Launchable, LaunchRefused
from ...timing.library_choice import Picked
from ..launching.launch import Kernel, PlanOnDevice, check, fill
from ..launching.squares import InputSquares, SquaresTables
from ..tensors.data import ProblemData
from ..tensors.op_data import RunOperands
from ..tensors.outputs import bits_type
from ..tensors.own_ops import OwnCall
from .cublaslt import WORKSPACE_BYTES, CublasLt
from .library_norms import LibraryNorms
from .library_parts import LibraryParts
from .widened_gemm import product_of


class Runner(Protocol):
    """One way to run the workload."""

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues one run."""
        ...

    def abort_record(self) -> str | None:
        """Why a run gave up waiting, or None."""
        ...

    def overwritten(self) -> str:
        """Which memory of its own it wrote that it must not, in words; empty where it did not."""
        ...

    def poison(self) -> None:
        """NaN into all memory of its own that a run must write before it reads it, on the current stream."""
        ...


@runtime_checkable
class CapturesItself(Protocol):
    """A runner whose calls can be captured by its own library alone."""

    def captured(self) -> Any:
        """The chain over the problem's slots, with `launch(stream)` as a CuPy graph has it."""
        ...


def runner_of(
    work: Work, kernel: Kernel, *, traced: bool = False, input_squares: InputSquares | None = None
) -> ChainRunner:
    """A candidate of ours, without a launch; `traced` where its kernel leaves stamps. `input_squares` goes in front of
    it where an input is normed; else the squares that come with the input are there.

    Raises:
        LaunchRefused: the card does not hold what its plan needs, or this is not what was proven and built.
    """
    launchable = launchable_of(work)
    load = partial(
        PlanOnDevice,
        launchable,
        spin_limit_cycles=work.spin_limit_cycles,
        programmatic=work.plan_kind.is_programmatic,
        traced=traced,
    )
    if work.plan_kind.is_side_by_side:
        first = load(0)
        return StreamsRunner(kernel, (first, load(1, first=first)), input_squares)
    return ChainRunner(kernel, tuple(load(index) for index in range(len(launchable.plans))), input_squares)


def launchable_of(work: Work) -> Launchable:
    """What a candidate of ours launches.

    Raises:
        LaunchRefused: it is the library's, which has nothing of the kind.
    """
    if work.shared is None:
        raise LaunchRefused(f"a {work.plan_kind} candidate has no kernel of ours to launch")
    return work.shared


class ChainRunner:
    """Our kernel on one stream: one launch (fused) or one per op, by the plans that it is given."""

    def __init__(
        self, kernel: Kernel, plans: tuple[PlanOnDevice, ...], input_squares: InputSquares | None = None
    ) -> None:
        """Without a launch.

        Raises:
            LaunchRefused: a launch whose CTAs need each other is larger than the card holds, and is programmatic or of
                clusters.
        """
        for plan in plans:
            if (plan.programmatic or kernel.placed_ctas > 1) and needs_co_residency(plan.plan):
                kernel.check_fits(plan.plan.plan.num_ctas)
        self._kernel = kernel
        self.plans = plans
        graph = plans[0].plan.graph
        self.squares = SquaresTables(graph.workload, graph.tiling)
        self._input_squares = input_squares

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues the launches in order."""
        self.enqueue_some(ops, stream, 0, len(self.plans))

    def enqueue_some(self, ops: tuple[OpBuffers, ...], stream: int, begin: int, end: int) -> None:
        """Enqueues those launches alone; what is made ready for all of them goes in front of the first one."""
        given = self._prepared(ops, stream) if begin == 0 else self.squares.given_to(ops)
        for plan in self.plans[begin:end]:
            self._kernel.launch(plan, given, stream)

    def _prepared(self, ops: tuple[OpBuffers, ...], stream: int) -> tuple[OpBuffers, ...]:
        """What the launches are given, behind what makes the squares of inputs."""
        if self._input_squares:
            self._input_squares.enqueue(ops, stream, is_programmatic=self.plans[0].programmatic)
        return self.squares.given_to(ops)

    def abort_record(self) -> str | None:
        """The first record of any of its launches, else what one of them was told and could not use."""
        records = (*(plan.abort_record() for plan in self.plans), *(plan.refused() for plan in self.plans))
        return next((str(record) for record in records if record), None)

    def overwritten(self) -> str:
        """The first that any of its launches wrote."""
        found = next((found for plan in self.plans if (found := plan.overwritten())), "")
        return found or self.squares.overwritten()

    def poison(self) -> None:
        """Sums of squares, and of parts of tiles."""
        self.squares.poison()
        for plan in self.plans:
            plan.poison_sums()


class SideStream:
    """A stream that forks off another one and joins it again."""

    def __init__(self) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._forked, self._done = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def fork(self, stream: int) -> int:
        """Follows all that is on `stream` so far; its handle. In a capture it becomes part of the graph by that."""
        check(driver.cuEventRecord(self._forked.ptr, stream))
        self.stream.wait_event(self._forked)
        return int(self.stream.ptr)

    def join(self, stream: int) -> None:
        """What follows on `stream` follows all that is on this one so far, too."""
        self._done.record(self.stream)
        check(driver.cuStreamWaitEvent(stream, self._done.ptr, 0))


class StreamsRunner(ChainRunner):
    """Our kernel on two streams: the second launch runs beside the first, waiting tile by tile, behind a start gate."""

    def __init__(
        self, kernel: Kernel, plans: tuple[PlanOnDevice, PlanOnDevice], input_squares: InputSquares | None = None
    ) -> None:
        super().__init__(kernel, plans, input_squares)
        self._has_signals = plans[0].plan.plan.num_signals > 0
        self._side = SideStream()

    def enqueue_some(self, ops: tuple[OpBuffers, ...], stream: int, begin: int, end: int) -> None:
        """Both launches. Forks, and joins again: what follows on `stream` follows both."""
        first, second = self.plans[begin:end]
        ops = self._prepared(ops, stream)
        side = self._side.fork(stream)
        try:
            self._kernel.launch(first, ops, stream)
            if self._has_signals:
                self._kernel.launch_start_gate(first, side)
            self._kernel.launch(second, ops, side)
        finally:
            self._side.join(stream)  # else a capture that a launch fails in would keep it open


class LibraryRunner:
    """The vendor library's calls, with its own fused epilogue, and one elementwise kernel for what that cannot do.

    One after the other; independent ops also side by side, each on a stream of its own. Of a chain with norms,
    residuals are added by the products (beta = 1) or by the norms' kernels.
    """

    def __init__(self, lt: CublasLt, data: ProblemData, tools: Any) -> None:
        """`tools` has the kernels of `LibraryParts` and of `LibraryNorms`."""
        self._dtype = data.workload.dtype
        self._ops = data.workload.tile_ops
        #: Whether the products may run side by side: none reads another's output.
        self.can_run_beside = data.workload.is_independent
        self._parts = LibraryParts(tools, self._dtype)
        self._norms = LibraryNorms(data.workload, tools)
        self._lt_version = lt.version
        #: Gate and up projection of each gated op, both halves of heads that are turned: [m, 2n].
        self._sums = [
            cupy.empty((op.m, op.weight_rows), bits_type(self._dtype)) if op.rows_per_column > 1 else None
            for op in self._ops
        ]
        slots = [data.slot_ops(slot) for slot in range(data.num_slots)]
        self._gemms = [
            product_of(lt, op, self._dtype, {one.w for one in of_op}, of_op[0].bias, tools)
            if op.IS_PRODUCT
            else OwnCall(op, self._dtype)
            for op, of_op in zip(self._ops, zip(*slots, strict=True), strict=True)
        ]
        num_streams = len(self._ops) if self.can_run_beside else 1
        #: Products that run side by side must not share one.
        self._workspaces = [cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8) for _ in range(num_streams)]
        self._sides = [SideStream() for _ in range(num_streams - 1)]
        #: Per op, which of the heuristic's algorithms.
        self.choices = (0,) * len(self._gemms)
        self._beside = self._adds_in_norms = False

    @property
    def can_add_in_norms(self) -> bool:
        """Whether the kernels of norms may add residuals."""
        return self._norms.can_add

    def use(self, picked: Picked) -> None:
        """Runs as was picked from now on."""
        self.choices, self._beside, self._adds_in_norms = picked.choices, picked.beside, picked.adds_in_norms

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Per op, how many the heuristic offers."""
        return tuple(gemm.num_algorithms for gemm in self._gemms)

    def recipe(self) -> LibraryRecipe:
        """How to call the library as this does. Of an op of another kind it has no call."""
        ops = zip(self._gemms, self._ops, self.choices, strict=True)
        found = (gemm.recipe(op, algorithm=choice) for gemm, op, choice in ops)
        calls = tuple(call for call in found if call is not None)
        return LibraryRecipe(cublaslt_version=self._lt_version, beside=self._beside, calls=calls)

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues one product per op."""
        if not self._beside:
            self.enqueue_some(ops, stream, 0, len(ops))
            return
        self._norms.begin()
        for index, buffer in enumerate(ops):  # several may read one normed input
            self._norms.input_of(index, buffer)
        forked = [side.fork(stream) for side in self._sides]
        self._launch(0, ops[0], stream, self._workspaces[0])
        for index, (side, own) in enumerate(zip(self._sides, forked, strict=True), start=1):
            with side.stream:  # where an elementwise kernel goes
                self._launch(index, ops[index], own, self._workspaces[index])
        for side in self._sides:
            side.join(stream)

    def enqueue_some(self, ops: tuple[OpBuffers, ...], stream: int, begin: int, end: int) -> None:
        """Enqueues those of a run's ops alone, one after the other; a run begins with the first one."""
        if begin == 0:
            self._norms.begin()
        for index in range(begin, end):
            self._launch(index, ops[index], stream, self._workspaces[0])

    def _launch(self, index: int, buffer: OpBuffers, stream: int, workspace: Any) -> None:
        """Enqueues one op; `stream` is the current one."""
        op, sums = self._ops[index], self._sums[index]
        out = buffer.c if sums is None else int(sums.data.ptr)
        left = self._norms.sums_of(index) if self._adds_in_norms else 0
        self._gemms[index].launch(
            *(self._norms.input_of(index, buffer), buffer.w, left or out, 0 if left else buffer.residual),
            *(workspace.data.ptr, stream),
            algorithm=self.choices[index],
        )
        if left:
            self._norms.add(index, buffer)
        self._parts.enqueue(op, out, buffer)

    def abort_record(self) -> str | None:
        """The library never waits."""
        return None

    def overwritten(self) -> str:
        """The library has no memory that it must not write but the problem's."""
        return ""

    def poison(self) -> None:
        """Gate and up projections, normed tensors."""
        self._norms.poison()
        for sums in self._sums:
            if sums is not None:
                fill(sums, self._dtype.row.nan_bits)
