"""The plan kinds as one thing: something that enqueues the whole workload on a stream, over given operands."""

from __future__ import annotations

from typing import Any, Protocol

import cupy

from tuner.core.workload import Activation, Dtype
from workers.gpu.cublaslt import WORKSPACE_BYTES, CublasLt, LibraryGemm
from workers.gpu.data import ProblemData
from workers.gpu.launch import Kernel, PlanOnDevice
from workers.messages import Work
from workers.parameter import OpBuffers, needs_co_residency


class Runner(Protocol):
    """One way to run the workload."""

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues one run."""
        ...

    def abort_record(self) -> str | None:
        """Why a run gave up waiting, or None."""
        ...


def runner_of(work: Work, kernel: Kernel, *, traced: bool = False) -> ChainRunner:
    """A candidate of ours, without a launch; `traced` where its kernel leaves stamps.

    Raises:
        LaunchRefused: the card does not hold what its plan needs.
    """
    programmatic = work.plan_kind.is_programmatic
    plans = tuple(
        PlanOnDevice(plan, spin_limit_cycles=work.spin_limit_cycles, programmatic=programmatic, traced=traced)
        for plan in work.plans
    )
    return ChainRunner(kernel, plans)


class ChainRunner:
    """Our kernel on one stream: one launch (fused) or one per op (two_launches), by the plans that it is given."""

    def __init__(self, kernel: Kernel, plans: tuple[PlanOnDevice, ...]) -> None:
        """Without a launch.

        Raises:
            LaunchRefused: a programmatic launch whose CTAs need each other is larger than the card holds.
        """
        for plan in plans:
            if plan.programmatic and needs_co_residency(plan.plan):
                kernel.check_fits(plan.plan.plan.num_ctas)
        self._kernel = kernel
        self.plans = plans

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues the launches in order."""
        for plan in self.plans:
            plan.launch(self._kernel, ops, stream)

    def abort_record(self) -> str | None:
        """The first record of any of its launches."""
        return next((str(record) for plan in self.plans if (record := plan.abort_record())), None)


class LibraryRunner:
    """The vendor library's calls, with its own fused epilogue where it has one and one elementwise kernel where not."""

    def __init__(self, lt: CublasLt, data: ProblemData, silu: Any) -> None:
        """`silu` is the elementwise kernel `tuner_silu`."""
        self._dtype = data.workload.dtype
        self._ops = data.workload.ops
        self._silu = silu
        buffers = data.slot_ops(0)
        self._gemms = [
            LibraryGemm(lt, op, self._dtype, buffer.bias) for op, buffer in zip(self._ops, buffers, strict=True)
        ]
        self._workspace = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)
        #: Per op, which of the heuristic's algorithms.
        self.choices = (0,) * len(self._gemms)

    @property
    def num_algorithms(self) -> tuple[int, ...]:
        """Per op, how many the heuristic offers."""
        return tuple(gemm.num_algorithms for gemm in self._gemms)

    def enqueue(self, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues one product per op."""
        for op, gemm, choice, buffer in zip(self._ops, self._gemms, self.choices, ops, strict=True):
            gemm.launch(buffer.a, buffer.w, buffer.c, self._workspace.data.ptr, stream, algorithm=choice)
            if op.activation is Activation.SILU:
                size = op.m * op.n
                args = (cupy.uint64(buffer.c), cupy.int64(size), cupy.int32(self._dtype is Dtype.BF16))
                self._silu((min(-(-size // 256), 4096),), (256,), args)

    def abort_record(self) -> str | None:
        """The library never waits."""
        return None
