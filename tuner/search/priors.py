"""Priors: what earlier searches found for shapes like the one that is asked, adapted to it, the most telling first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tuner.core.legal.legality import check_kind, kind_problem, tiling_problem
from tuner.core.legal.wgmma import COLUMNS
from tuner.core.plan.rasters import ROW
from tuner.core.plan.tile_graph import tile_graph
from tuner.core.problem.workload import MAX_OPS, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    Ordering,
    Schedule,
    SplitOrder,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind, in_turn
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.attention import AnySpace, AttentionSpace
from tuner.core.space.space import Space
from tuner.core.trial.job import Objective
from tuner.core.trial.priors import Found, Prior
from tuner.errors import IllegalSchedule
from tuner.search.attention_priors import adapt_attention, attention_distance
from tuner.search.attention_seeds import attention_beside
from tuner.search.pool import canonical
from tuner.search.seeds import forecast_us

#: Priors of a search, at most, and the share of a budget that they may take: one trial in so many.
NUM_PRIORS = 8
BUDGET_SHARE = 4
#: Of another shape only so many are tried: the others are like them. Of the same shape, all.
NUM_OF_NEIGHBOUR = 3
#: Shapes further off than this are no neighbours.
MAX_DISTANCE = 3.0
#: How far off a shape is by an option that changes what an epilogue does, by the element type, and by the objective.
OPTION, DTYPE, CACHE_STATE, REGIME = 0.1, 0.1, 0.5, 0.25
#: How far off a chain is in front of which no attention stood.
NO_ATTENTION = 0.5
#: How far off what other kernel sources reached is: as far as a tenth more rows.
OTHER_KERNELS = 0.14
#: A tile that covers the rows in so few pieces covers those of another shape in as many; more pieces stay as high.
MOST_COVERING = 4
#: A tile's height is a multiple of one of these, by engine and by the side on which the weights are.
HEIGHTS = (8, 16, 32, 64, 128)
#: In which order the kinds of one shape are tried; their second bests come behind.
_KINDS = (
    *(kind for kind in reversed(PlanKind) if kind.is_searched),
    *dict.fromkeys(kind for num_ops in range(1, MAX_OPS + 1) for kind in in_turn(num_ops)),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What priors are wanted for."""

    space: AnySpace
    objective: Objective
    #: Digest of the kernel sources that measure now.
    kernel_version: str
    #: The budget.
    num_trials: int


def distance(workload: Workload, objective: Objective, found: Found) -> float:
    """How alike two questions are, 0 for the same: twice the rows is one away, and so is one op with four times the
    weights; infinity where nothing can be learned."""
    ops, others = workload.ops, found.workload.ops
    if workload.kind != found.workload.kind or len(ops) != len(others):
        return math.inf
    if workload.num_in_front != found.workload.num_in_front:
        return math.inf
    if [op.gated for op in ops] != [op.gated for op in others]:
        return math.inf
    if any(workload.producers_of(op) != found.workload.producers_of(op) for op in range(len(ops))):
        return math.inf
    has_none = bool(workload.attentions) and not found.workload.attentions
    away = NO_ATTENTION if has_none else attention_distance(workload.attentions, found.workload.attentions)
    away += DTYPE * (workload.dtype != found.workload.dtype)
    away += CACHE_STATE * (objective.l2 != found.objective.l2) + REGIME * (objective.regime != found.objective.regime)
    for op, other in zip(ops, others, strict=True):
        away += abs(math.log2(op.m / other.m)) / len(ops)
        away += (abs(math.log2(op.weight_rows / other.weight_rows)) + abs(math.log2(op.k / other.k))) / 2
        options = ("activation", "bias", "residual", "row_scale")
        away += OPTION * sum(getattr(op, name) != getattr(other, name) for name in options)
        away += OPTION * ((bool(op.norm) != bool(other.norm)) + (bool(op.rotary) != bool(other.rotary)))
    return away


def choose_priors(asked: Asked, found: Iterable[Found]) -> tuple[Prior, ...]:
    """What a search tries behind the library, none twice, all legal: the nearest shape's best of each kind first."""
    count = min(NUM_PRIORS, asked.num_trials // BUDGET_SHARE)
    chosen: dict[Candidate, Prior] = {}
    for one in _ranked(asked, found):
        if len(chosen) == count:
            break
        candidate = adapt(asked.space, one)
        if candidate is not None and candidate not in chosen:
            chosen[candidate] = Prior(
                candidate=candidate,
                source=one.source,
                workload=one.workload.describe(),
                found_us=one.time_us,
                found_speedup=one.speedup,
                kernel_version=one.kernel_version,
                is_adapted=candidate != one.candidate,
            )
    return tuple(chosen.values())


def _ranked(asked: Asked, found: Iterable[Found]) -> Iterator[Found]:
    """Shape by shape, the nearest first."""
    workload = asked.space.workload
    by_shape: dict[tuple[float, str, Objective], list[Found]] = {}
    for one in found:
        away = distance(workload, asked.objective, one)
        if away <= MAX_DISTANCE and one.candidate.plan_kind.is_ours:
            away += OTHER_KERNELS * (one.kernel_version != asked.kernel_version)
            by_shape.setdefault((away, one.workload.digest, one.objective), []).append(one)
    for (_, digest, _), group in sorted(by_shape.items(), key=lambda item: item[0][:2]):
        if digest == workload.digest:
            yield from _in_turn(group)
        else:
            searched = [one for one in group if one.candidate.plan_kind.is_searched]
            yield from _in_turn(searched)[:NUM_OF_NEIGHBOUR]


def _in_turn(group: Sequence[Found]) -> list[Found]:
    """The best of each kind, then the second of each, and so on."""
    by_kind: dict[PlanKind, list[Found]] = {kind: [] for kind in _KINDS}
    unique = {one.candidate: one for one in sorted(group, key=lambda one: one.speedup)}
    for one in sorted(unique.values(), key=lambda one: -one.speedup):
        by_kind[one.candidate.plan_kind].append(one)
    places = [(place, i, one) for i, ones in enumerate(by_kind.values()) for place, one in enumerate(ones)]
    return [one for _, _, one in sorted(places, key=lambda item: item[:2])]


def adapt(space: AnySpace, found: Found) -> Candidate | None:
    """What was found as it suits the space's shape and GPU; None where nothing like it is legal.

    Of two forms that are legal, the one with the shorter forecast."""
    if isinstance(space, AttentionSpace):
        return _adapt_with_attention(space, found)
    kind, schedule = found.candidate.plan_kind, found.candidate.schedule
    assert schedule is not None
    legal, as_wide = [], _as_wide(space, found.workload, schedule.tiling)
    for tiling in dict.fromkeys((*_covering(space, found.workload, as_wide), as_wide)):
        candidate = _first_legal(space, kind, tiling, schedule.ordering)
        if candidate is not None:
            legal.append(candidate)
    return min(legal, key=lambda one: forecast_us(space, one)) if len(legal) > 1 else next(iter(legal), None)


def _adapt_with_attention(space: AttentionSpace, found: Found) -> Candidate | None:
    """The attention's schedule and the products', each adapted by itself; a chain's that was found without one gets the
    attention's first guess."""
    kind, schedule = found.candidate.plan_kind, found.candidate.schedule
    assert schedule is not None
    if kind_problem(space.workload, space.gpu, kind) is not None:
        return None
    if schedule.attentions:
        attention = adapt_attention(space, schedule.attentions[0], found.workload.attentions[0])
    else:
        attention = attention_beside(space, schedule)
    if attention is None:
        return None
    if space.products is None:
        return Candidate(plan_kind=kind, schedule=space.with_product(attention, None))
    alone = Candidate(plan_kind=_kind_of(kind, len(space.workload.ops)), schedule=replace(schedule, attentions=()))
    products = adapt(space.products, replace(found, workload=found.workload.products, candidate=alone))
    return products and Candidate(plan_kind=kind, schedule=space.with_product(attention, products.schedule))


def _kind_of(kind: PlanKind, num_products: int) -> PlanKind:
    """The kind that launches so many products as `kind` does them and an attention."""
    if not kind.is_apart or kind.is_for(num_products):
        return kind
    alike = (one for one in PlanKind if one.is_apart and one.is_programmatic is kind.is_programmatic)
    return next(one for one in alike if one.is_for(num_products) and not one.is_side_by_side)


def _as_wide(space: Space, before: Workload, tiling: Tiling) -> Tiling:
    """The tiling with as many rows of W a tile where an op's columns have more of them, or fewer, than they had."""
    tiles = []
    for op, other, tile in zip(space.workload.ops, before.ops, tiling.tiles, strict=True):
        rows = tile.n * other.rows_per_column
        same = op.rows_per_column == other.rows_per_column
        tiles.append(tile if same else replace(tile, n=max(1, rows // op.rows_per_column // COLUMNS) * COLUMNS))
    return replace(tiling, tiles=tuple(tiles))


def _covering(space: Space, before: Workload, tiling: Tiling) -> Iterator[Tiling]:
    """The lowest tiling that cuts the rows into as many tiles as they were, where these are few; its rings are as deep
    as fits."""
    rows, rows_before = (max(op.m for op in workload.ops) for workload in (space.workload, before))
    pieces = -(-rows_before // tiling.tiles[0].m)
    if rows == rows_before or pieces > MOST_COVERING:
        return
    height = -(-rows // pieces)
    for multiple in HEIGHTS:
        tiles = tuple(replace(tile, m=-(-height // multiple) * multiple) for tile in tiling.tiles)
        fitting = next(_shallower(space, replace(tiling, tiles=tiles)), None)
        if fitting is not None:
            yield fitting
            return


def _shallower(space: Space, tiling: Tiling) -> Iterator[Tiling]:
    """The legal ones of the tiling and of those with fewer stages, the deepest first."""
    inputs = range(tiling.input_stages, 1, -1) if tiling.input_stages else (0,)
    depths = product(range(tiling.num_stages, 1, -1), inputs)
    for num_stages, input_stages in sorted(depths, key=sum, reverse=True):
        window = min(tiling.window, num_stages - 1)
        one = replace(tiling, num_stages=num_stages, input_stages=input_stages, window=window)
        if tiling_problem(space.workload, space.gpu, one) is None:
            yield one


def _first_legal(space: Space, kind: PlanKind, tiling: Tiling, ordering: Ordering) -> Candidate | None:
    """The tiling in this order, or in the least plain one that is legal."""
    if tiling_problem(space.workload, space.gpu, tiling) is not None:
        return None
    grids = space.grids(tile_graph(space.workload, tiling))
    own = (ordering.ctas_per_sm, ordering.reserved_sms)
    for plainer, (ctas, reserved) in product(_plainer(space, tiling, ordering), dict.fromkeys((own, *grids))):
        of_grid = replace(plainer, ctas_per_sm=ctas, reserved_sms=reserved)
        schedule = canonical(kind, Schedule(tiling=tiling, ordering=of_grid))
        try:
            check_kind(space.workload, space.gpu, kind, schedule)
        except IllegalSchedule:
            continue
        if space.is_legal(schedule):
            return Candidate(plan_kind=kind, schedule=schedule)
    return None


def _plainer(space: Space, tiling: Tiling, ordering: Ordering) -> Iterator[Ordering]:
    """The ordering, and with ever more of its axes at their plainest."""
    yield ordering
    ordering = replace(ordering, split_tiles=space.split_tiles(tiling)[0])
    yield ordering
    ordering = replace(ordering, part_major=False, split_order=SplitOrder.CONTIGUOUS)
    yield ordering
    ordering = replace(ordering, granularity=Granularity.ROW, sync_width=1, wait_position=WaitPosition.TASK)
    yield ordering
    ordering = replace(ordering, rasters=(ROW,) * len(tiling.tiles), interleave=Interleave(), partition=0)
    yield ordering
    yield replace(ordering, assignment=Assignment.STATIC)
