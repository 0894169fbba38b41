"""The last wave of each op: which tiles are split, and when this differs from splitting the launch's tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import H200
from tests.support.conformance.schedules import wide
from tuner.core.legal.legality import check_schedule
from tuner.core.plan.order.queues import tails_of
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.ordering import Assignment, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

#: 160 and 112 tiles; each tile row of the second op reads the whole row of the first one.
PAIR = ffn_pair(m=300, d_in=7168, d_hidden=5120, d_out=7168)
TAILS = wide(((160, 64, 64), (160, 128, 64)), split_k=(4, 1), split_tiles=SplitTiles.TAILS)


def ordered(schedule: Schedule = TAILS, **fields: object) -> Schedule:
    return schedule.but(ordering=replace(schedule.ordering, **fields))  # type: ignore[arg-type]


def test_it_is_what_whole_waves_of_each_op_leave() -> None:
    ops = np.array([0, 0, 0, 1, 0, 0, 1, 1])
    assert tails_of(ops, 3).tolist() == [False, False, False, False, True, True, False, False]


def test_the_first_op_of_a_fused_launch_has_a_last_wave_of_its_own() -> None:
    (fused,) = plans_for(PAIR, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=TAILS))
    parts = fused.plan.tasks[fused.plan.tasks[:, 7] > 0]
    assert set(parts[:, 0].tolist()) == {0}
    assert (len(parts), fused.plan.num_tasks) == (4 * (160 - 132), 132 + 4 * 28 + 112)
    first, _ = plans_for(PAIR, H200, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=TAILS))
    assert first.plan.num_tasks == 132 + 4 * 28


def test_its_line_is_read() -> None:
    assert " split-tails " in str(TAILS)
    assert read_line(str(TAILS)) == TAILS


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (
            ordered(TAILS.but(tiling=replace(TAILS.tiling, split_k=(1, 4)))),
            "the last wave of each op has all of the 112 tiles in parts: use split_tiles all",
        ),
        (ordered(partition=4), "the sides of a partition have their own waves: use split_tiles tail, or partition 0"),
        (ordered(assignment=Assignment.SHARES), "shares are assigned as contiguous ranges and have no last wave"),
        (ordered(part_major=True), "the same time, so their order does not matter: drop part_major"),
    ],
)
def test_where_it_is_no_choice_it_is_refused(schedule: Schedule, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        check_schedule(PAIR, H200, schedule)


def test_where_the_launchs_tail_has_the_same_tiles_that_is_its_name() -> None:
    pair = ffn_pair(m=300, d_in=7168, d_hidden=8448, d_out=7168)  # two whole waves, then a tail
    with pytest.raises(
        IllegalSchedule, match=("the last wave of each op is also that of the launch: use split_tiles tail")
    ):
        check_schedule(pair, H200, wide(((160, 64, 64), (160, 104, 64)), split_k=(1, 4), split_tiles=SplitTiles.TAILS))
