"""How well a stored result fits a request, including the machine that will run it."""

from __future__ import annotations

import math

from tuner.core.problem.gpu import parse_target
from tuner.core.trial.questions import Question, shape_distance
from tuner.core.trial.records import Best, BestMatch, JobRecord, MatchKind
from tuner.errors import InvalidInput, NotFound

_ORDER = list(MatchKind)


def _compare(job: JobRecord, best: Best, question: Question) -> BestMatch:
    spec, workload, objective = job.spec, question.workload, question.objective
    same_target = spec.target_id == question.target_id
    distance = shape_distance(spec.workload, workload)
    differences = [] if same_target else [f"measured on {spec.target_id}, not {question.target_id}"]
    if spec.workload != workload:
        differences.append(f"for {spec.workload.describe()}, not {workload.describe()}: distance {distance:.3g}")
    if spec.objective.l2 is not objective.l2:
        differences.append(f"measured with a {spec.objective.l2} L2, not a {objective.l2} one")
    if spec.objective.regime is not objective.regime:
        differences.append(f"measured in regime {spec.objective.regime}, not {objective.regime}")
    if spec.energy_within_percent is not None:
        differences.append(f"chosen for its energy, up to {spec.energy_within_percent:g} % slower than the fastest")
    if spec.torch_compile:
        differences.append("compared with torch.compile, too")
    if same_target:
        differences += question.machine.differences(best.environment)
    kind = MatchKind.ANY if not same_target else MatchKind.NEAREST if differences else MatchKind.EXACT
    return BestMatch(best=best, job=job, match=kind, differences=tuple(differences), distance=distance)


def check_match(found: tuple[JobRecord, Best] | None, question: Question) -> BestMatch:
    """Checks that the closest existing result fits at least as well as requested.

    Raises:
        NotFound: it does not fit; the message describes it.
    """
    wanted = f"{question.workload.describe()} on {question.target_id}"
    if found is None:
        _check_target(wanted, question.target_id)
        raise NotFound(f"there is no result for {wanted}, nor for anything similar; submit a job")
    fit = _compare(*found, question)
    words = f"the closest is {fit.match}: {'; '.join(fit.differences)}"
    remedies = [] if _ORDER.index(fit.match) <= _ORDER.index(question.match) else [f"match={fit.match}"]
    if fit.distance > question.max_distance:
        words += f", and the limit is {question.max_distance:.3g}"
        remedies.append(f"max_distance={math.ceil(100 * fit.distance) / 100:g}")
    if remedies:
        _check_target(wanted, question.target_id)
        kind = "result" if question.match is MatchKind.ANY else f"{question.match} result"
        how = f"use {' and '.join(remedies)} to get it, or submit a job"
        raise NotFound(f"there is no {kind} for {wanted}; {words} ({how})")
    return fit


def _check_target(wanted: str, target_id: str) -> None:
    """Raises `NotFound` if a result is missing because no GPU has that name."""
    try:
        parse_target(target_id)
    except InvalidInput as error:
        raise NotFound(f"there is no result for {wanted}: {error.problem}; {error.remedy}") from error
