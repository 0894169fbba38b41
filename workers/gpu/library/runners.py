"""The plan kinds behind one interface: a runner enqueues the whole workload on a stream, over given operands."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, runtime_checkable

import cupy
from cuda.bindings import driver

from ...protocol.messages import Work
from ...source.launch_args import OpBuffers, needs_co_residency
from ...source.launchable import Launchable, LaunchRefused
from ..launching.launch import Kernel, PlanOnDevice, check
from ..launching.squares import InputSquares, SquaresTables
from ..tensors.op_data import RunOperands


class Runner(Protocol):
    """One way to run the workload."""

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues one run."""
        ...

    def abort_record(self) -> str | None:
        """Why a run's wait expired, or None."""
        ...

    def overwritten(self) -> str:
        """The part of its private memory that it overwrote although it must not, as text; empty if none."""
        ...

    def poison(self) -> None:
        """Sets to NaN all of its private memory that a run must write before reading it; on the current stream."""
        ...


@runtime_checkable
class CapturesItself(Protocol):
    """A runner whose calls only its own library can capture."""

    def captured(self) -> Any:
        """The chain over the problem's slots, with the method `launch(stream)` of a CuPy graph."""
        ...


def runner_of(
    work: Work, kernel: Kernel, *, traced: bool = False, input_squares: InputSquares | None = None
) -> ChainRunner:
    """A runner for our candidate, before any launch; `traced` if its kernel records stamps. `input_squares` runs before
    it if an input is normalized; otherwise the input's own squares are used.

    Raises:
        LaunchRefused: the card cannot hold what its plan needs, or it differs from what was proven and built.
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
    """The launchable of our candidate.

    Raises:
        LaunchRefused: it is a candidate of the library.
    """
    if work.shared is None:
        raise LaunchRefused(f"a {work.plan_kind} candidate has no generated kernel to launch")
    return work.shared


class ChainRunner:
    """Our kernel on one stream: one launch (fused) or one per op, with the given plans."""

    def __init__(
        self, kernel: Kernel, plans: tuple[PlanOnDevice, ...], input_squares: InputSquares | None = None
    ) -> None:
        """Prepares the launches; launches nothing.

        Raises:
            LaunchRefused: a launch whose CTAs need each other is larger than the card holds, and is programmatic or has
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
        """Enqueues only launches `begin` to `end` - 1; the preparation for all launches runs before the first one."""
        given = self._prepared(ops, stream) if begin == 0 else self.squares.given_to(ops)
        for plan in self.plans[begin:end]:
            self._kernel.launch(plan, given, stream)

    def _prepared(self, ops: tuple[OpBuffers, ...], stream: int) -> tuple[OpBuffers, ...]:
        """The launches' arguments, after the sums of squares of inputs were enqueued."""
        if self._input_squares:
            self._input_squares.enqueue(ops, stream, is_programmatic=self.plans[0].programmatic)
        return self.squares.given_to(ops)

    def abort_record(self) -> str | None:
        """The first abort record of any of its launches, else the first invalid length or page."""
        records = (*(plan.abort_record() for plan in self.plans), *(plan.refused() for plan in self.plans))
        return next((str(record) for record in records if record), None)

    def overwritten(self) -> str:
        """What the first launch overwrote although it must not."""
        found = next((found for plan in self.plans if (found := plan.overwritten())), "")
        return found or self.squares.overwritten()

    def poison(self) -> None:
        """Sets sums of squares, and sums of parts of tiles, to NaN."""
        self.squares.poison()
        for plan in self.plans:
            plan.poison_sums()


class SideStream:
    """A stream that forks off another one and joins it again."""

    def __init__(self) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._forked, self._done = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def fork(self, stream: int) -> int:
        """Waits for everything on `stream` so far; returns its handle. In a capture, this makes it part of the
        graph."""
        check(driver.cuEventRecord(self._forked.ptr, stream))
        self.stream.wait_event(self._forked)
        return int(self.stream.ptr)

    def join(self, stream: int) -> None:
        """Makes everything later on `stream` wait for everything on this stream so far, too."""
        self._done.record(self.stream)
        check(driver.cuStreamWaitEvent(stream, self._done.ptr, 0))


class StreamsRunner(ChainRunner):
    """Our kernel on two streams: the second launch runs next to the first, waiting tile by tile, after a start gate."""

    def __init__(
        self, kernel: Kernel, plans: tuple[PlanOnDevice, PlanOnDevice], input_squares: InputSquares | None = None
    ) -> None:
        super().__init__(kernel, plans, input_squares)
        self._has_signals = plans[0].plan.plan.num_signals > 0
        self._side = SideStream()

    def enqueue_some(self, ops: tuple[OpBuffers, ...], stream: int, begin: int, end: int) -> None:
        """Enqueues both launches. The side stream forks and joins again: later work on `stream` waits for both."""
        first, second = self.plans[begin:end]
        ops = self._prepared(ops, stream)
        side = self._side.fork(stream)
        try:
            self._kernel.launch(first, ops, stream)
            if self._has_signals:
                self._kernel.launch_start_gate(first, side)
            self._kernel.launch(second, ops, side)
        finally:
            self._side.join(stream)  # otherwise a launch that fails during a capture would leave the capture open
