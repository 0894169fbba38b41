"""Scattered sums: when parts may reduce shares of their tiles, and when the proof accepts their queues."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.support import mutants
from tests.support.cases import H200
from tests.support.chains import block
from tests.support.conformance.scattered import PAIRS, SHAPES, scattered
from tests.support.conformance.schedules import in_turns, portable, wide
from tuner.core.legal.legality import check_schedule, estimated_resources, is_legal
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan, verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Epilogue, PartSums
from tuner.errors import CoverageError, IllegalSchedule, LivenessError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.render import render

PAIR = ffn_pair(m=137, d_in=520, d_hidden=1032, d_out=776)
TILES = ((64, 48, 64), (64, 64, 64))
PARTS = scattered(wide(TILES, split_k=(2, 4)))
#: Tile by tile, on four CTAs that each have several tasks.
FEW = PARTS.but(ordering=replace(PARTS.ordering, reserved_sms=128))


def tiled(**fields: object) -> Schedule:
    return PARTS.but(tiling=replace(PARTS.tiling, **fields))  # type: ignore[arg-type]


def ordered(**fields: object) -> Schedule:
    return PARTS.but(ordering=replace(PARTS.ordering, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (scattered(portable(((64, 64, 64), (64, 32, 64)))), "the mma engine; use last"),
        (scattered(wide(TILES)), "part_sums scattered, but no op is split: use last"),
        (
            scattered(in_turns(TILES, split_k=(1, 2))),
            "a part would wait before the other warpgroup's turn; use cooperative",
        ),
        (
            tiled(epilogue=Epilogue.TMA),
            ("part_sums scattered and epilogue tma: shares are stored by threads; use direct"),
        ),
        (tiled(split_k=(1, 6)), "part_sums scattered with 6 parts of down: use up to 4"),
        (
            scattered(wide(((64, 48, 64), (64, 24, 64)), split_k=(1, 4))),
            "4 parts, and each must finish 8 of its columns",
        ),
        (ordered(assignment=Assignment.TICKET), "only queues run them at the same time: use static"),
        (
            FEW.but(ordering=replace(FEW.ordering, part_major=True)),
            "156 parts on 4 CTAs, so those of a tile do not run at the same time: drop part_major",
        ),
        (ordered(reserved_sms=129), "4 parts wait for each other, but there are 3 CTAs"),
    ],
)
def test_where_parts_cannot_wait_for_each_other_it_is_refused(schedule: Schedule, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=re.escape(why)):
        check_schedule(PAIR, H200, schedule)


def test_two_streams_have_none() -> None:
    with pytest.raises(IllegalSchedule, match="parts of one launch would wait for SMs that the other launch holds"):
        plans_for(PAIR, H200, Candidate(plan_kind=PlanKind.TWO_STREAMS, schedule=PARTS))


def test_rows_that_are_normed_want_swapped_operands() -> None:
    chain = block(70, heads=128, width=256, hidden=192, qkv=160)
    tiles = ((72, 48, 64), (72, 24, 64), (72, 48, 64), (72, 64, 64))
    split = scattered(wide(tiles, split_k=(2, 1, 1, 1)))
    asked = replace(split.tiling, tiles=tuple(replace(tile, m=80) for tile in split.tiling.tiles), num_warps=8)
    with pytest.raises(IllegalSchedule, match="its rows: use last, or swapped operands"):
        check_schedule(chain, H200, split.but(tiling=asked))
    assert is_legal(chain, H200, split.but(tiling=replace(split.tiling, num_warps=4, swap_ab=True)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.TWO_LAUNCHES_PDL])
def test_what_is_legal_is_proven(shape: str, pair: Workload, kind: PlanKind) -> None:
    assert is_legal(pair, H200, SHAPES[shape])
    assert plans_for(pair, H200, Candidate(plan_kind=kind, schedule=SHAPES[shape]))


def test_the_first_parts_of_all_tiles_may_go_first_where_all_parts_run_at_once() -> None:
    swept = ordered(part_major=True)
    pair = replace(PAIR, ops=tuple(replace(op, m=64) for op in PAIR.tile_ops))
    assert plans_for(pair, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=swept))


def verified(words: np.ndarray, schedule: Schedule) -> VerifiedPlan:
    graph = tile_graph(PAIR, schedule.tiling, (1,))
    return verify(Plan.from_words(words), graph, estimated_resources(PAIR, schedule.tiling), H200)


def with_queues(*queues: tuple[int, ...]) -> np.ndarray:
    """A plan of only the second op, whose first tasks, two tiles of four parts, are in `queues`."""
    plan = make_plan(tile_graph(PAIR, FEW.tiling, (1,)), FEW.ordering, H200)
    rank = plan.tasks.reshape(len(queues), -1, plan.tasks.shape[1])
    tasks = rank.copy()
    for number, queue in enumerate(queues):
        tasks[number, :2] = [rank[one % 4, one // 4] for one in queue]
    return replace(plan, tasks=tasks.reshape(plan.tasks.shape)).words


def test_parts_that_stand_the_other_way_round_in_another_queue_deadlock() -> None:
    assert verified(with_queues((0, 4), (1, 5), (2, 6), (3, 7)), FEW)
    with pytest.raises(LivenessError, match=r"comes after .* other parts of these tiles come in the opposite order"):
        verified(with_queues((0, 4), (5, 1), (2, 6), (3, 7)), FEW)
    last = FEW.but(tiling=replace(FEW.tiling, part_sums=PartSums.LAST))
    assert verified(with_queues((0, 4), (5, 1), (2, 6), (3, 7)), last)


def test_parts_of_one_tile_in_one_queue_deadlock() -> None:
    with pytest.raises(LivenessError, match="comes after"):
        verified(with_queues((0, 1), (4, 5), (2, 6), (3, 7)), FEW)


def test_a_tile_of_fewer_parts_than_the_kernel_has_shares_is_refused() -> None:
    """The first share was reduced, but nobody reduced the last: the kernel of four parts would have stored only three
    shares."""
    graph = tile_graph(PAIR, FEW.tiling, (1,))
    plan = make_plan(graph, FEW.ordering, H200)
    *rest, last = np.flatnonzero((plan.tasks[:, 1:3] == plan.tasks[0, 1:3]).all(axis=1)).tolist()
    fewer = mutants.edit(plan, rest[-1], 10, int(plan.tasks[rest[-1], 10]) + int(plan.tasks[last, 10]))
    for part in rest:
        fewer = mutants.edit(fewer, part, 7, 3)
    words = mutants.drop(fewer, last).words
    with pytest.raises(
        CoverageError, match=r"is added by no part: .* is one of 3 parts, but each of 4 would add one share"
    ):
        verified(words, FEW)
    assert verified(words, FEW.but(tiling=replace(FEW.tiling, part_sums=PartSums.LAST)))


def test_what_is_not_scattered_is_the_same_source() -> None:
    last = replace(PARTS.tiling, part_sums=PartSums.LAST)
    assert "TUNER_SCATTERED_SUMS\n" in render(PAIR, PARTS.tiling)
    assert "#define TUNER_SCATTERED_SUMS" not in render(PAIR, last)
