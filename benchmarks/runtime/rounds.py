"""A pack's launches in the rounds of the finals: the same operands, graphs of the same length, the same clocks.

The comparison uses the worker's own timer over one problem. Each round has a sample of the library, one of the kernel
as the worker launches it, and one of the same kernel as the C runtime launches it from a pack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.common.setting import problem_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import LIBRARY
from tuner.runtime import Pack
from tuner.runtime.binding import native
from tuner.runtime.binding.native import Shape, Tensors, checked
from tuner.runtime.binding.prepared import Prepared
from tuner.workers.protocol.messages import Work
from tuner.workers.source.launch_args import OpBuffers

#: Allocates a number of bytes: returns the owner of the memory, and an address at a multiple of 256.
Allocate = Callable[[int], tuple[Any, int]]


def on_device(num_bytes: int) -> tuple[Any, int]:
    """Allocates memory on the card."""
    import cupy

    memory = cupy.empty(num_bytes + 256, cupy.uint8)
    return memory, -(-memory.data.ptr // 256) * 256


class PackRunner:
    """A kernel of a pack as a runner for the worker's timer: `library.runners.Runner`."""

    def __init__(self, pack: Pack, m: int, flags: int = 0, *, allocate: Allocate = on_device) -> None:
        """Prepares the pack's only shape at `m` rows, in the build that `flags` of tuner_ffn_prepare select."""
        shape = Shape()
        checked(pack.c, pack.c.tuner_pack_shape(pack.handle, 0, ctypes.byref(shape), None))
        answer = pack.find(shape, m)
        assert answer.is_kernel, answer.text
        memory = allocate(answer.choice.memory_bytes)
        self._c, self._m, self._is_guarded = pack.c, m, flags != native.AS_MEASURED
        self._prepared = Prepared(pack.c, pack.handle, answer.choice, memory, stream=0, flags=flags)

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues a launch by the runtime."""
        up, down = ops
        tensors = Tensors(
            x=up.a, w1=up.w, w2=down.w, b1=up.bias, b2=down.bias, residual=down.residual, row_scale=up.row_scale,
            hidden=up.c, y=down.c,
        )  # fmt: skip
        launch = self._c.tuner_ffn_launch(self._prepared.handle, self._m, ctypes.byref(tensors), stream, 0)
        checked(self._c, launch)

    def abort_record(self) -> str | None:
        """The reason for an abort, from a guarded build."""
        return (self._prepared.abort() or None) if self._is_guarded else None

    def overwritten(self) -> str:
        """Empty: the runtime's memory has no canaries; those of the operands belong to the problem."""
        return ""

    def poison(self) -> None:
        """Does nothing: a kernel of a pack has no sums that are read before they are written."""

    def close(self) -> None:
        """Frees the kernel, whose graphs must not be replayed afterwards."""
        self._prepared.close()


class Rounds:
    """Makes problems on the card, and times graphs of them as the finals do. One problem at a time."""

    def __init__(self, tools_cubin: bytes) -> None:
        """`tools_cubin`: tools.cu, compiled for the card."""
        import cupy

        from tuner.workers.gpu.library.vendor import open_vendor

        self._tools = cupy.cuda.function.Module()
        self._tools.load(tools_cubin)
        self._vendor = open_vendor()

    def problem(self, workload: Workload) -> Any:
        """A `ProblemOnCard`: operands, references and the library's baseline; cold, under the regime of its finals."""
        import cupy

        from tuner.workers.gpu.measuring.problem import ProblemOnCard

        cupy.get_default_memory_pool().free_all_blocks()
        return ProblemOnCard(problem_of(workload), self._tools, self._vendor, None)


def times_us(prepared: Any, runners: Sequence[Any], num_rounds: int) -> list[list[float]]:
    """[runner][round] microseconds in the same rounds, after a check of each one's numbers.

    Raises:
        WrongNumbers: an output differs from float64 by more than the tolerance of its type.
        Aborted: a launch was aborted.
    """
    from tuner.workers.gpu.measuring.measure import time_together
    from tuner.workers.gpu.tensors.check import Aborted, check_numbers

    for runner in runners:
        check_numbers(
            prepared.data, prepared.comparer, partial(prepared.run_once, runner), Work(plan_kind=LIBRARY.plan_kind)
        )
        prepared.check_intact(runner)
    graphs = [prepared.timer.capture(runner) for runner in runners]
    found, _ = time_together(prepared, graphs, num_rounds)
    for runner in runners:
        if record := runner.abort_record():
            raise Aborted(record)
    return found
