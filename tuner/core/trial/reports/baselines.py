"""A user's own programs in the finals of a job: their definitions and times."""

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
    """One launch of a user's own kernel."""

    #: Its name in the source, ``extern "C"``.
    kernel: str
    #: CTAs, and threads per CTA.
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    #: The arguments in order: a tensor is passed by address, an int is an `int` on the device, and a float a `float`.
    arguments: tuple[Argument, ...]
    #: Dynamic shared memory per CTA, bytes.
    smem_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CudaSource:
    """A user's own CUDA code, and how it is launched: one launch after the other on one stream."""

    #: The text of the .cu file.
    text: str
    launches: tuple[KernelLaunch, ...]
    #: Options for NVRTC, besides the architecture and the toolkit's headers.
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PythonFunction:
    """A function of PyTorch tensors."""

    #: The function, pickled by cloudpickle.
    pickled: bytes
    #: Its tensor parameters, by name.
    arguments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A user's own program for the workload of a job."""

    #: The program's name in results.
    name: str
    program: CudaSource | PythonFunction


@dataclass(frozen=True, kw_only=True)
class BaselineTime:
    """The time of a user's own program, in shared rounds with the library and all finalists."""

    name: str
    #: Microseconds, the median of the rounds; None if there is no time.
    time_us: float | None = None
    #: The library's time divided by the program's, the median of the rounds, and its 95 % confidence interval.
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    #: The program's time divided by the winner's: the winner's gain over the program.
    winner_speedup: float | None = None
    #: Rounds that count.
    num_rounds: int = 0
    #: Why there is no time; empty otherwise.
    reason: str = ""


def given_tensors(workload: Workload) -> dict[str, Tensor]:
    """The inputs of a program, by name: everything that the ops read and none of them writes."""
    written = {op.name for op in workload.ops}
    tensors = (one for op in workload.ops for one in op.tensors(workload.dtype))
    return {one.name: one for one in tensors if one.role is not Role.OUTPUT and one.name not in written}


def parameter_names(names: Iterable[str]) -> Mapping[str, str]:
    """Tensor names by the name of a Python function's parameter: ``up_weight`` for ``up.weight``."""
    return {re.sub(r"\W", "_", name): name for name in names}
