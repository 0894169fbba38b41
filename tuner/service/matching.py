"""Finds the stored result that fits an asker's workload, target and environment."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.records import Best, BestMatch, JobRecord, MatchKind
from tuner.errors import NotFound

_ORDER = list(MatchKind)


def _is_simulated(target_id: str) -> bool:
    return target_id.startswith(SIMULATED_PREFIX)


def _kin(one: Workload, other: Workload) -> bool:
    """Whether they differ in sizes alone."""

    def form(workload: Workload) -> object:
        return workload.kind, workload.dtype, [replace(op, m=1, n=1, k=1) for op in workload.ops]

    return form(one) == form(other)


def _shape_distance(one: Workload, other: Workload) -> float:
    """Sum of the factors, in powers of two, between the sizes of two kin workloads."""
    sizes = [[size for op in workload.ops for size in (op.m, op.n, op.k)] for workload in (one, other)]
    return sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True))


def _environment_differences(asked: Environment | None, found: Environment) -> list[str]:
    """In words, what differs between the asker's environment and the result's."""
    if asked is None:
        return []
    return [
        f"measured with {field.name} {getattr(found, field.name)!r}, here it is {getattr(asked, field.name)!r}"
        for field in fields(Environment)
        if getattr(asked, field.name) != getattr(found, field.name)
    ]


def _compare(
    job: JobRecord, best: Best, workload: Workload, target_id: str, environment: Environment | None
) -> BestMatch:
    spec = job.spec
    same_target = spec.target_id == target_id
    differences = [] if same_target else [f"measured on {spec.target_id}, not {target_id}"]
    if spec.workload != workload:
        differences.append(f"for {spec.workload.describe()}, not {workload.describe()}")
    if same_target:
        differences += _environment_differences(environment, best.environment)
    kind = MatchKind.ANY if not same_target else MatchKind.NEAREST if differences else MatchKind.EXACT
    return BestMatch(best=best, job=job, match=kind, differences=tuple(differences))


def choose_match(
    results: list[tuple[JobRecord, Best]],
    workload: Workload,
    target_id: str,
    environment: Environment | None,
    least: MatchKind,
) -> BestMatch:
    """The best fit among `results` (newest first), at least as good as `least`; never simulated for real.

    Raises:
        NotFound: none fits; the message names the nearest one there is.
    """
    fits = [
        _compare(job, best, workload, target_id, environment)
        for job, best in results
        if _is_simulated(job.spec.target_id) == _is_simulated(target_id) and _kin(job.spec.workload, workload)
    ]
    wanted = f"{workload.describe()} on {target_id}"
    if not fits:
        raise NotFound(f"there is no result for {wanted}, nor for one like it; submit a job")
    # min keeps the first of equals: the newest.
    found = min(fits, key=lambda fit: (_ORDER.index(fit.match), _shape_distance(fit.job.spec.workload, workload)))
    if _ORDER.index(found.match) > _ORDER.index(least):
        raise NotFound(
            f"there is no {least} result for {wanted}; the closest is {found.match}: "
            f"{'; '.join(found.differences)} (ask with match={found.match} to get it, or submit a job)"
        )
    return found
