"""How well a stored result fits an asker's workload, target and environment."""

from __future__ import annotations

from dataclasses import fields

from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.records import Best, BestMatch, JobRecord, MatchKind
from tuner.errors import NotFound

_ORDER = list(MatchKind)


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


def check_match(
    found: tuple[JobRecord, Best] | None,
    workload: Workload,
    target_id: str,
    environment: Environment | None,
    least: MatchKind,
) -> BestMatch:
    """How well the closest result that there is fits, if at least as well as `least`.

    Raises:
        NotFound: it does not; the message names it.
    """
    wanted = f"{workload.describe()} on {target_id}"
    if found is None:
        raise NotFound(f"there is no result for {wanted}, nor for one like it; submit a job")
    fit = _compare(*found, workload, target_id, environment)
    if _ORDER.index(fit.match) > _ORDER.index(least):
        raise NotFound(
            f"there is no {least} result for {wanted}; the closest is {fit.match}: "
            f"{'; '.join(fit.differences)} (ask with match={fit.match} to get it, or submit a job)"
        )
    return fit
