"""What a pipeline asks for: a problem, the machine that will run the kernel, and how well a result must fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import Objective
from tuner.core.trial.records import MatchKind

#: How far a shape may be from the one that is asked for, unless the asker says otherwise: M twice as large, or half.
DEFAULT_MAX_DISTANCE = 2.0
#: Distances are compared to so many digits, in SQL and here: a limit of 2 takes a factor of exactly two.
DISTANCE_DIGITS = 6


def shape_distance(one: Workload, other: Workload) -> float:
    """How far two shapes are apart: for m, n and k of both ops the factor between them, in powers of two, summed.

    A pair that differs in its rows alone, by a factor of two, is 2 away: both products have those rows.
    """
    pairs = zip(sized_ops(one), sized_ops(other), strict=True)
    factors = [mine / its for a, b in pairs for mine, its in zip(a, b, strict=True)]
    return round(sum(abs(math.log2(factor)) for factor in factors), DISTANCE_DIGITS)


def sized_ops(workload: Workload) -> list[tuple[int, int, int]]:
    """m, n and k of two ops: the first two, or an attention that stands behind these and the first one. Of an attention
    its rows, its columns and its longest context."""
    ops = workload.ops[:2]
    ops = (*(one for one in workload.launch_ops if one not in ops), *ops)[:2]
    return [(op.m, op.n, op.shape.max_length if isinstance(op, AttentionOp) else op.k) for op in ops]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that will run the kernel, as far as the asker knows it; None is not compared."""

    #: e.g. ``NVIDIA H200``.
    gpu_name: str | None = None
    #: Driver version.
    driver: str | None = None
    #: CUDA version.
    cuda: str | None = None
    #: Digest of the kernel sources that are wanted.
    kernel_version: str | None = None

    def known(self, *, simulated: bool) -> dict[str, str]:
        """What is compared with a result's environment; a result that no card measured has no GPU, driver or CUDA."""
        names = ["kernel_version"] if simulated else [field.name for field in fields(self)]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def differences(self, environment: Environment) -> list[str]:
        """In words, what is known of the machine and unlike the environment of a result."""
        return [
            f"measured with {name.replace('_', ' ')} {getattr(environment, name)!r}, the asker has {value!r}"
            for name, value in self.known(simulated=environment.simulated).items()
            if getattr(environment, name) != value
        ]


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which stored result is asked for."""

    workload: Workload
    #: ``h200`` or ``simulated:h200``.
    target_id: str
    objective: Objective
    machine: Machine = Machine()
    #: The weakest match that may answer.
    match: MatchKind = MatchKind.EXACT
    #: How far the shape of a weaker match may be, by `shape_distance`; >= 0.
    max_distance: float = DEFAULT_MAX_DISTANCE
