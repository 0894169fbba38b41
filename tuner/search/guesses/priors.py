"""Priors: results of earlier searches for similar shapes, the most relevant first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.core.problem.workload import MAX_OPS, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind, in_turn
from tuner.core.space.joint import AnySpace
from tuner.core.trial.job import Objective
from tuner.core.trial.priors import Found, Prior, octaves_of
from tuner.core.trial.reports.same_kernels import alike
from tuner.search.guesses.adapting import adapt
from tuner.search.guesses.side_by_side import side_by_side
from tuner.search.launch_op import distance_of
from tuner.search.model.pool import canonical

#: Maximum number of priors in a search; they are also at most one trial in `BUDGET_SHARE` of the budget.
NUM_PRIORS = 8
BUDGET_SHARE = 4
#: Maximum number of priors from one other shape, whose other results are similar. From the same shape all are tried.
NUM_OF_NEIGHBOUR = 3
#: Shapes farther away than this are not used.
MAX_DISTANCE = 3.0
#: Additional distance for a different epilogue, element type, or objective.
OPTION, DTYPE, CACHE_STATE, REGIME = 0.1, 0.1, 0.5, 0.25
#: Additional distance if the found chain had no attention before it.
NO_LAUNCH_OP = 0.5
#: Additional distance of results from different kernel sources, the same as for a tenth more rows.
OTHER_KERNELS = 0.14
#: The order in which the best results of a shape's plan kinds are tried; the second best of each follows.
_KINDS = (
    *(kind for kind in reversed(PlanKind) if kind.is_searched),
    *dict.fromkeys(kind for num_ops in range(1, MAX_OPS + 1) for kind in in_turn(num_ops)),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The question that priors are chosen for."""

    space: AnySpace
    objective: Objective
    #: Digest of the current kernel sources.
    kernel_version: str
    #: The budget.
    num_trials: int


def distance(workload: Workload, objective: Objective, found: Found) -> float:
    """The distance between two questions; 0 if they are equal, infinity if one result teaches nothing about the other.
    Twice the rows, unless they are few, is a distance of one, and so is one op with four times the weights."""
    ops, others = workload.tile_ops, found.workload.tile_ops
    if workload.kind != found.workload.kind or len(ops) != len(others):
        return math.inf
    if workload.borders != found.workload.borders:
        return math.inf
    if [(op.KIND, op.gated) for op in ops] != [(op.KIND, op.gated) for op in others]:
        return math.inf
    if any(workload.producers_of(op) != found.workload.producers_of(op) for op in range(len(ops))):
        return math.inf
    has_none = bool(workload.launch_ops) and not found.workload.launch_ops
    away = NO_LAUNCH_OP if has_none else distance_of(workload.launch_ops, found.workload.launch_ops)
    away += DTYPE * (workload.dtype != found.workload.dtype)
    away += CACHE_STATE * (objective.l2 != found.objective.l2) + REGIME * (objective.regime != found.objective.regime)
    for op, other in zip(ops, others, strict=True):
        away += abs(octaves_of(op.m) - octaves_of(other.m)) / len(ops)
        sizes = (op.weight_rows, other.weight_rows), (op.k, other.k)
        away += sum(abs(math.log2(max(1, a) / max(1, b))) for a, b in sizes) / 2
        asked, found_there = ({type(part): part.likeness(one) for part in one.parts} for one in (op, other))
        away += OPTION * sum(asked.get(part) != found_there.get(part) for part in {*asked, *found_there})
    return away


def choose_priors(asked: Asked, found: Iterable[Found]) -> tuple[Prior, ...]:
    """The candidates that a search tries after the library, all legal and without duplicates: the nearest shape's best
    of each kind first."""
    count = min(NUM_PRIORS, asked.num_trials // BUDGET_SHARE)
    chosen: dict[Candidate, Prior] = {}
    for one in _ranked(asked, found):
        for candidate in _forms(asked.space, one):
            if candidate in chosen or len(chosen) == count:
                continue
            chosen[candidate] = Prior(
                candidate=candidate,
                source=one.source,
                workload=one.workload.describe(),
                found_us=one.time_us,
                found_speedup=one.speedup,
                kernel_version=one.kernel_version,
                is_adapted=candidate != one.candidate,
            )
        if len(chosen) == count:
            break
    return tuple(chosen.values())


def _forms(space: AnySpace, found: Found) -> Iterator[Candidate]:
    """A result adapted to the space. If merged neighbours help, a variant with them comes first, since many results are
    older than that axis.
    """
    candidate = adapt(space, found)
    if candidate is None:
        return
    placed = candidate.schedule and side_by_side(space, candidate.schedule)
    if placed and not candidate.plan_kind.is_side_by_side:
        yield replace(candidate, schedule=placed)
    yield candidate


def _ranked(asked: Asked, found: Iterable[Found]) -> Iterator[Found]:
    """The results shape by shape, the nearest shape first."""
    workload = asked.space.workload
    by_shape: dict[tuple[float, str, Objective], list[Found]] = {}
    for one in found:
        away = distance(workload, asked.objective, one)
        if away <= MAX_DISTANCE and one.candidate.plan_kind.is_ours:
            away += OTHER_KERNELS * (one.kernel_version not in alike(asked.kernel_version))
            by_shape.setdefault((away, one.workload.digest, one.objective), []).append(one)
    for (_, digest, _), group in sorted(by_shape.items(), key=lambda item: item[0][:2]):
        if digest == workload.digest:
            yield from _in_turn(group)
        else:
            yield from _in_turn([_as_searched(one) for one in group])[:NUM_OF_NEIGHBOUR]


def _as_searched(found: Found) -> Found:
    """The result as one of the searched kind whose schedules its own kind only launches differently."""
    kind, schedule = found.candidate.plan_kind, found.candidate.schedule
    if kind.base is None or schedule is None:
        return found
    return replace(found, candidate=Candidate(plan_kind=kind.base, schedule=canonical(kind.base, schedule)))


def _in_turn(group: Sequence[Found]) -> list[Found]:
    """The best of each kind, then the second best of each, and so on."""
    by_kind: dict[PlanKind, list[Found]] = {kind: [] for kind in _KINDS}
    unique = {one.candidate: one for one in sorted(group, key=lambda one: one.speedup)}
    for one in sorted(unique.values(), key=lambda one: -one.speedup):
        by_kind[one.candidate.plan_kind].append(one)
    places = [(place, i, one) for i, ones in enumerate(by_kind.values()) for place, one in enumerate(ones)]
    return [one for _, _, one in sorted(places, key=lambda item: item[:2])]
