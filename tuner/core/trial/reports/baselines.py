"""Programs of a user's own beside the finals of a job: what they are, and what they took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.core.problem.ops.op import Role, Tensor
from tuner.core.problem.workload import Workload

#: An argument of a kernel: the name of a tensor, or a number.
Argument = str | int | float


@dataclass(frozen=True, kw_only=True)
class KernelLaunch:
    """One launch of a kernel of a user's own."""

    #: As its source has it, ``extern "C"``.
    kernel: str
    #: CTAs and threads of a CTA.
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    #: In their order: of a tensor its address; an int is an `int` on the device, a float a `float`.
    arguments: tuple[Argument, ...]
    #: Dynamic shared memory of a CTA, bytes.
    smem_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CudaSource:
    """CUDA of a user's own, and how it is launched: one launch behind the other on one stream."""

    #: The text of the .cu file.
    text: str
    launches: tuple[KernelLaunch, ...]
    #: For NVRTC, beside the architecture and the toolkit's headers.
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PythonFunction:
    """A function of PyTorch tensors."""

    #: By cloudpickle.
    pickled: bytes
    #: The tensors that it takes, by their names.
    arguments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A program of a user's own for the workload of a job."""

    #: As results show it.
    name: str
    program: CudaSource | PythonFunction


@dataclass(frozen=True, kw_only=True)
class BaselineTime:
    """What a user's own program took, in rounds with the library and all finalists."""

    name: str
    #: Microseconds, the median of the rounds; None where there is none.
    time_us: float | None = None
    #: The library's time over this one, the median of the rounds, and its 95 % confidence interval.
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    #: This time over the winner's: what the winner gains over the program.
    winner_speedup: float | None = None
    #: Rounds that count.
    num_rounds: int = 0
    #: Why there is no time; empty otherwise.
    reason: str = ""


def given_tensors(workload: Workload) -> dict[str, Tensor]:
    """What a program is given, by name: all that the ops read and none of them writes."""
    written = {op.name for op in workload.ops}
    tensors = (one for op in workload.ops for one in op.tensors(workload.dtype))
    return {one.name: one for one in tensors if one.role is not Role.OUTPUT and one.name not in written}


def parameter_names(names: Iterable[str]) -> Mapping[str, str]:
    """By the parameter of a Python function, the tensor's name: ``up_weight`` for ``up.weight``."""
    return {re.sub(r"\W", "_", name): name for name in names}
