"""What a pipeline requests: a problem, the machine that will run the kernel, and how well a result must fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import Objective
from tuner.core.trial.records import MatchKind
from tuner.core.trial.reports.same_kernels import alike

#: The default maximum distance from the requested shape: M twice or half as large.
DEFAULT_MAX_DISTANCE = 2.0
#: Decimal digits to which distances are compared, in SQL and here: a limit of 2 includes a factor of exactly two.
DISTANCE_DIGITS = 6


def shape_distance(one: Workload, other: Workload) -> float:
    """The distance between two shapes of one form: the sum of the factors between their sizes, in powers of two.

    A pair that differs only in its rows, by a factor of two, has a distance of 2: both products have those rows.
    """
    pairs = zip(log_sizes(one), log_sizes(other), strict=True)
    return round(sum(abs(mine - its) for mine, its in pairs), DISTANCE_DIGITS)


def log_sizes(workload: Workload) -> tuple[float, ...]:
    """Sizes as powers of two: those of two ops, and for each other op what may differ between chains, except its rows,
    which all ops share.

    The two ops are the first ones; or launch ops, followed by the first one.
    """
    first = workload.ops[:2]
    behind = tuple(op for op in workload.launch_ops if op not in first)
    sized = (*behind, *first)[: max(2, len(behind))]
    others = (op for op in workload.ops if op not in sized)
    sizes = [size for op in sized for size in op.sizes]
    sizes += [op.to_json()[name] for op in others for name in op.FREE_IN_CHAIN if name != "m"]
    return tuple(map(math.log2, sizes))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that will run the kernel, as far as the caller knows it; facts that are None are not compared."""

    #: e.g. ``NVIDIA H200``.
    gpu_name: str | None = None
    #: Driver version.
    driver: str | None = None
    #: CUDA version.
    cuda: str | None = None
    #: Digest of the requested kernel sources.
    kernel_version: str | None = None

    def known(self, *, simulated: bool) -> dict[str, str]:
        """The facts that are compared with a result's environment; a simulated result has no GPU, driver or CUDA."""
        names = ["kernel_version"] if simulated else [field.name for field in fields(self)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def differences(self, environment: Environment) -> list[str]:
        """The known facts about the machine that differ from the environment of a result, as text."""
        return [
            f"measured with {name.replace('_', ' ')} {getattr(environment, name)!r}, but the request has {value!r}"
            for name, value in self.known(simulated=environment.simulated).items()
            if not _is_alike(name, getattr(environment, name), value)
        ]


def _is_alike(name: str, one: str, other: str) -> bool:
    return one in alike(other) if name == "kernel_version" else one == other


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which stored result is requested."""

    workload: Workload
    #: ``h200`` or ``simulated:h200``.
    target_id: str
    objective: Objective
    machine: Machine = Machine()
    #: The weakest acceptable match.
    match: MatchKind = MatchKind.EXACT
    #: Maximum distance of the shape of a weaker match, by `shape_distance`; >= 0.
    max_distance: float = DEFAULT_MAX_DISTANCE
