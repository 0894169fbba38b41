"""Neighbours: when they are allowed, and their grids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200
from tests.support.conformance.neighbours import PAIRS, SHAPES
from tests.support.conformance.schedules import portable, wide
from tuner.core.legal.legality import check_schedule, is_legal
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.space import placed_together
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.render import render

PAIR, RAGGED = PAIRS.values()
COLUMNS = SHAPES["columns"]
ALL_ROWS = wide(((96, 48, 64), (96, 64, 64)))
SLICED = wide(((128, 64, 64), (128, 64, 64)), cluster=(2, 1))


def beside(schedule: Schedule, neighbours: int = 2) -> Schedule:
    return schedule.but(tiling=replace(schedule.tiling, neighbours=neighbours))


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (beside(COLUMNS, 3), "neighbours 3: use one of 1, 2"),
        (beside(portable(((64, 64, 64), (64, 32, 64)))), "neighbours 2: not supported by the mma engine; use 1"),
        (beside(ALL_ROWS), "neighbours 2, but each tile has all rows, so no two read the same weights: use 1"),
        (beside(SLICED), "neighbours 2 in clusters of 2 CTAs, which are placed together anyway: use 1"),
    ],
)
def test_neighbours_that_cannot_be_or_gain_nothing_are_refused(schedule: Schedule, why: str) -> None:
    pair = ffn_pair(m=256, d_in=512, d_hidden=1024, d_out=832) if schedule.tiling.cluster_size > 1 else PAIR
    assert is_legal(pair, H200, beside(schedule, 1))
    with pytest.raises(IllegalSchedule, match=why):
        check_schedule(pair, H200, schedule)


def test_two_streams_have_none() -> None:
    with pytest.raises(
        IllegalSchedule, match=(r"the CTAs of two launches take whichever SMs are free: use neighbours 1")
    ):
        plans_for(PAIR, H200, Candidate(plan_kind=PlanKind.TWO_STREAMS, schedule=COLUMNS))


def test_a_grid_is_a_multiple_of_them_and_a_cta_of_it_may_have_no_task() -> None:
    first, second = plans_for(RAGGED, H200, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=COLUMNS))
    assert (first.plan.num_tasks, first.plan.num_ctas) == (66, 66)
    assert (second.plan.num_tasks, second.plan.num_ctas) == (39, 40)
    assert second.plan.queues.tolist()[-2:] == [39, 39]


@pytest.mark.parametrize(("reserved", "plain"), [(0, 0), (1, 2), (2, 2), (3, 4)])
def test_sms_are_reserved_by_twos(reserved: int, plain: int) -> None:
    pair = ffn_pair(m=96, d_in=512, d_hidden=8192, d_out=512)
    alone = beside(COLUMNS, 1)
    alone = alone.but(ordering=replace(alone.ordering, reserved_sms=reserved))
    assert placed_together(alone).ordering.reserved_sms == plain
    assert is_legal(pair, H200, placed_together(alone))
    (plan,) = plans_for(pair, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=placed_together(alone)))
    assert plan.plan.num_ctas == H200.num_sms - plain
    if reserved != plain:
        with pytest.raises(IllegalSchedule, match=f"use 1 per SM less {plain}"):
            check_schedule(pair, H200, beside(alone))


def test_the_source_differs_in_what_the_launch_is_told_alone() -> None:
    alone, placed = (render(PAIR, beside(COLUMNS, count).tiling).splitlines() for count in (1, 2))
    differing = [(one, other) for one, other in zip(alone, placed, strict=True) if one != other]
    assert [one for one in differing if not one[0].startswith("// tiling:")] == [
        ("#define TUNER_CLUSTER_DIMS", "#define TUNER_CLUSTER_DIMS __cluster_dims__(2, 1, 1)")
    ]
