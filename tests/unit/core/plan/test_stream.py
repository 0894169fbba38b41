"""A tail whose k-steps are shared evenly: what is split, the evenness of the shares, refusals, and results."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import mutants
from tests.support.cases import H200, SMALL, ordered_graphs, ordering, small_gpu, tiling, wgmma
from tests.support.interpret import interpret, plain_product, random_tensors
from tuner.core.legal.legality import check_schedule, tiling_problem
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.split_tasks import MIN_STREAM_STEPS, evenly_split
from tuner.core.plan.table.words import MAX_PART_STEPS, Plan
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, SplitOrder, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.errors import CoverageError, IllegalSchedule, SafetyError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

STREAM = ordering(assignment=Assignment.STATIC, split_tiles=SplitTiles.STREAM)
#: Five tiles of 6 k-steps that no other op reads, and two of 3.
FIVE = tile_graph(independent_pair((16, 160, 192), (16, 64, 96)), tiling((16, 32), (16, 32), split=(3, 1)))


def stretches(plan: Plan) -> list[list[tuple[int, ...]]]:
    """By CTA: op, tile column, first k-step and number of k-steps of each task; the last two are 0 for a whole tile."""
    queues = [plan.tasks[a:b] for a, b in zip(plan.queues[:-1].tolist(), plan.queues[1:].tolist(), strict=True)]
    return [[(op, col, first, count) for op, _, col, *_, first, count in queue.tolist()] for queue in queues]


def test_the_sketch_in_the_docs_is_true() -> None:
    """Seven tiles of 8 k-steps on four CTAs: each gets three quarters of one of the last three tiles."""
    seven = ffn_pair(m=16, d_in=256, d_hidden=224, d_out=32)
    alone = tile_graph(seven, tiling((16, 32), (16, 32), split=(3, 1)), (0,))
    assert stretches(make_plan(alone, STREAM, small_gpu(4))) == [
        [(0, 0, 0, 0), (0, 4, 0, 6)],
        [(0, 1, 0, 0), (0, 4, 6, 2), (0, 5, 0, 4)],
        [(0, 2, 0, 0), (0, 5, 4, 4), (0, 6, 0, 2)],
        [(0, 3, 0, 0), (0, 6, 2, 6)],
    ]


def test_what_cannot_be_cut_is_dealt_whole_and_the_others_fill_up() -> None:
    """On four CTAs, one of the five tiles of 6 k-steps remains, and two tiles of 3 stay whole: each CTA gets 3 k-steps
    of these. On eight CTAs, two CTAs have 3 already, and the 36 k-steps in all give 4 or 5 to each."""
    assert stretches(make_plan(FIVE, STREAM, small_gpu(4))) == [
        [(0, 0, 0, 0), (0, 4, 0, 3)],
        [(0, 1, 0, 0), (1, 0, 0, 0)],
        [(0, 2, 0, 0), (1, 1, 0, 0)],
        [(0, 3, 0, 0), (0, 4, 3, 3)],
    ]
    eight = stretches(make_plan(FIVE, STREAM, small_gpu(8)))
    assert [sum(count or 3 for *_, count in queue) for queue in eight] == [4, 5, 5, 4, 4, 5, 5, 4]
    assert [[(col, count) for op, col, _, count in queue if op == 1] for queue in eight] == [
        *([[]] * 5),
        [(0, 0)],
        [(1, 0)],
        [],
    ]


def test_each_launch_and_each_side_of_a_partition_has_a_tail_of_its_own() -> None:
    tiles = tiling((16, 32), (16, 32), split=(3, 3))
    both = tile_graph(independent_pair((16, 96, 128), (16, 96, 128)), tiles)
    alone = [make_plan(replace(both, op_indices=(op,)), STREAM, small_gpu(2)) for op in (0, 1)]
    beside = make_paired_plans(both, STREAM, small_gpu(2))
    sides = stretches(make_plan(both, replace(STREAM, partition=4), small_gpu(4)))
    one = [[(0, 0, 0), (2, 0, 2)], [(1, 0, 0), (2, 2, 2)]]
    for plans in (alone, beside):
        assert [[[task[1:] for task in queue] for queue in stretches(plan)] for plan in plans] == [one, one]
    assert [[task[1:] for task in queue] for queue in sides] == one + one
    assert {task[8] for plan in beside for task in plan.tasks.tolist() if task[7]} == {0, 1}


@st.composite
def tails(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], ...]:
    """The k-steps, work per step and maximum parts of some tiles, and the existing work of some CTAs."""
    num_tiles, num_ctas = draw(st.integers(1, 12)), draw(st.integers(1, 16))
    most = draw(st.lists(st.integers(2, 5), min_size=num_tiles, max_size=num_tiles))
    steps = [draw(st.integers(parts, 40)) for parts in most]
    work = draw(st.lists(st.integers(1, 4), min_size=num_tiles, max_size=num_tiles))
    busy = draw(st.lists(st.integers(0, 60), min_size=num_ctas, max_size=num_ctas))
    return np.array(steps), np.array(work), np.array(most), np.array(busy, dtype=np.float64)


@pytest.mark.slow
@settings(max_examples=100)
@given(tails())
def test_a_cut_keeps_to_the_parts_that_a_tile_may_have_and_leaves_no_slivers(
    case: tuple[np.ndarray[Any, Any], ...],
) -> None:
    steps, _, most, _ = case
    pieces = evenly_split(*case)
    taken: dict[int, list[int]] = {}
    for tile, first, count, _ in zip(*(column.tolist() for column in pieces), strict=True):
        taken.setdefault(tile, []).extend(range(first, first + count))
    assert taken == {tile: list(range(count)) for tile, count in enumerate(steps.tolist())}  # each once, in order
    parts = np.bincount(pieces.tile)
    assert (parts <= most).all()
    assert (np.diff(pieces.cta) >= 0).all()  # a CTA's range is contiguous
    fewest = np.minimum(MIN_STREAM_STEPS, steps // most)
    assert (pieces.num_steps >= fewest[pieces.tile])[parts[pieces.tile] > 1].all()


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(1, 30), st.integers(2, 40), st.data())
def test_shares_are_even_but_for_a_step_where_nothing_is_rounded(
    num_ctas: int, num_tiles: int, data: st.DataObject
) -> None:
    """Tiles of 64 k-steps, at most one for each CTA, and enough parts: a cut is near an end only by chance."""
    assume(num_tiles <= num_ctas)
    busy = np.array(data.draw(st.lists(st.integers(0, 8), min_size=num_ctas, max_size=num_ctas)), dtype=np.float64)
    steps, work = np.full(num_tiles, 64), np.full(num_tiles, 1)
    pieces = evenly_split(steps, work, np.full(num_tiles, 64), busy)
    total = np.bincount(pieces.cta, weights=pieces.num_steps, minlength=num_ctas) + busy
    had_some = np.isin(np.arange(num_ctas), pieces.cta)
    near_an_end = MIN_STREAM_STEPS if (np.bincount(pieces.tile) > 1).any() else 0
    assert total[had_some].max() - total[had_some].min() <= 1 + 2 * near_an_end
    assert not (~had_some).any() or busy[~had_some].min() >= total[had_some].min() - 1 - 2 * near_an_end


def test_steps_are_weighted_by_their_products() -> None:
    """A tile with twice the work per k-step gets two of three shares."""
    pieces = evenly_split(np.array([12, 12]), np.array([2, 1]), np.array([2, 2]), np.zeros(3))
    assert [column.tolist() for column in pieces] == [[0, 0, 1], [0, 6, 0], [6, 6, 12], [0, 1, 2]]


@pytest.mark.slow
@settings(max_examples=25)
@given(ordered_graphs(), st.integers(0, 2**32))
def test_a_tail_cut_by_k_steps_computes_the_plain_product(case: tuple[TileGraph, Ordering, Gpu], seed: int) -> None:
    graph, order, gpu = case
    order = replace(
        order, assignment=Assignment.STATIC, split_tiles=SplitTiles.STREAM, split_order=SplitOrder.CONTIGUOUS
    )
    split = tuple(min(4, len(graph.steps(op))) for op in range(len(graph.workload.tile_ops)))
    graph = replace(graph, tiling=replace(graph.tiling, split_k=split if max(split) > 1 else ()))
    plan = make_plan(graph, order, gpu)
    verify(plan, graph, SMALL, gpu)
    tensors = random_tensors(graph.workload, seed % 100)
    wanted = plain_product(graph.workload, tensors)
    outputs = interpret(plan, graph, tensors | wanted, random.Random(seed), num_launches=2)
    for name, output in outputs.items():
        np.testing.assert_allclose(output, wanted[name], err_msg=name)


#: One tile row: up has 4 tiles, down has 3 tiles of 4 k-steps, each of which reads one of up's tiles.
PAIR = tile_graph(ffn_pair(m=16, d_in=32, d_hidden=128, d_out=96), tiling((16, 32), (16, 32), split=(1, 3)))


def test_a_part_waits_for_the_columns_of_its_own_steps_alone() -> None:
    plan = make_plan(PAIR, replace(STREAM, granularity=Granularity.TILE), small_gpu(4))
    parts = [task for task in plan.tasks.tolist() if task[7]]
    assert {(part[2], part[9], part[10]) for part in parts} == {
        (0, 0, 3),
        (0, 3, 1),
        (1, 0, 2),
        (1, 2, 2),
        (2, 0, 1),
        (2, 1, 3),
    }
    for _, _, _, begin, end, *_, first, count in parts:
        assert [wait[:2] for wait in plan.waits[begin:end].tolist()] == [[first, first + count]]
    (other,) = [task for task, words in enumerate(plan.tasks.tolist()) if words[2] == 0 and words[9] == 3]
    (task,) = [task for task, words in enumerate(plan.tasks.tolist()) if words[7] and words[2] == 0 and words[9] == 0]
    moved = mutants.edit(mutants.edit(mutants.edit(plan, task, 10, 2), other, 9, 2), other, 10, 2)
    refused(moved, PAIR, SafetyError, r"down tile 0,0 part 1 of 2\) can load its k-step 0")


def refused(plan: Plan, graph: TileGraph, error: type[Exception], witness: str) -> None:
    with pytest.raises(error, match=witness):
        verify(plan, graph, SMALL, small_gpu(8))


def test_parts_that_are_not_their_tile_are_refused() -> None:
    alone = tile_graph(FIVE.workload, FIVE.tiling, (0,))
    plan = make_plan(alone, STREAM, small_gpu(8))
    assert plan.tasks[:2, [6, 7, 9, 10]].tolist() == [[0, 2, 0, 4], [1, 2, 4, 2]]  # of 6 k-steps
    for task, column, value, witness in (
        (0, 10, 3, "tile 0,0: none of its parts has k-step 3"),
        (0, 10, 5, "tile 0,0: 2 of its parts have k-step 4"),
        (1, 9, 3, "tile 0,0: 2 of its parts have k-step 3"),
        (0, 10, 0, r"part 0 of 2\): no k-step of 6"),
        (1, 9, 5, r"part 1 of 2\): 2 k-steps from 5 to 7 of 6"),
        (1, 7, 4, "part 1 of 4, not of 2 to 3"),
        (1, 7, 3, "tile 0,0 part 2 of 3: no task computes it"),
    ):
        refused(mutants.edit(plan, task, column, value), alone, CoverageError, witness)


def test_parts_may_have_each_others_steps_and_tiles_different_numbers_of_parts() -> None:
    """The proof refuses no more than necessary: the sum of a tile is right in any order of its parts."""
    alone = tile_graph(FIVE.workload, FIVE.tiling, (0,))
    plan = make_plan(alone, STREAM, small_gpu(8))
    tasks = plan.tasks.copy()
    tasks[[0, 1], 9:] = tasks[[1, 0], 9:]
    verify(replace(plan, tasks=tasks), alone, SMALL, small_gpu(8))
    third = mutants.edit(mutants.edit(mutants.double(plan, 1), -1, 9, 5), -1, 10, 1)
    third = mutants.edit(mutants.edit(third, -1, 6, 2), 1, 10, 1)
    refused(third, alone, CoverageError, "part 2 of 2, not of 2 to 3")
    for task in (0, 1, -1):
        third = mutants.edit(third, task, 7, 3)
    verify(third, alone, SMALL, small_gpu(8))
    assert set(third.tasks[:, 7].tolist()) == {2, 3}
    refused(mutants.edit(third, 0, 7, 2), alone, CoverageError, r"part 0 of 2\) is one of 2, task 1 .* is one of 3")


#: 14 tiles of 12 k-steps and 11 of 14, 25 tiles in all.
MANY = ffn_pair(m=16, d_in=384, d_hidden=448, d_out=352)


@pytest.mark.parametrize(
    ("split", "num_sms", "changes", "sentence"),
    [
        ((), 4, {}, "no op is split, so there is no tail to split: use split_tiles all"),
        ((1, 3), 4, {"assignment": Assignment.TICKET}, "queues that are filled by stride, not ticket: use static"),
        ((1, 3), 4, {"assignment": Assignment.SHARES}, "queues that are filled by stride, not shares: use static"),
        ((1, 3), 4, {"part_major": True}, "the parts of a tail run at the same time, so their order does not matter"),
        ((1, 3), 4, {"split_order": SplitOrder.STRIDED}, "an even share is a contiguous range of k-steps"),
        ((2, 1), 7, {}, "are whole tiles or even parts: use an empty split_k"),
        ((3, 3), 11, {}, None),
        ((1, 3), 4, {}, None),
        ((2, 3), 12, {"partition": 3}, None),
    ],
)
def test_shares_that_are_none_or_plainer_ones_are_refused(
    split: tuple[int, ...], num_sms: int, changes: dict[str, Any], sentence: str | None
) -> None:
    one = Schedule.of(tiling=tiling((16, 32), (16, 32), split=split), ordering=replace(STREAM, **changes))
    problem = ""
    try:
        check_schedule(MANY, small_gpu(num_sms), one)
    except IllegalSchedule as refusal:
        problem = str(refusal)
    assert (sentence in problem) if sentence else not problem


def test_a_plainer_name_gives_the_same_tasks() -> None:
    """Two of ten tiles remain for four CTAs: halves of them are the even parts of a tail."""
    ten = independent_pair((16, 160, 128), (16, 160, 128))
    tiles = tiling((16, 32), (16, 32), split=(2, 2))
    with pytest.raises(IllegalSchedule, match="are whole tiles or even parts: use split_tiles tail"):
        check_schedule(ten, small_gpu(4), Schedule.of(tiling=tiles, ordering=STREAM))
    graph = tile_graph(ten, tiles)
    plain = make_plan(graph, replace(STREAM, split_tiles=SplitTiles.TAIL), small_gpu(4))
    assert make_plan(graph, STREAM, small_gpu(4)).words.tobytes() == plain.words.tobytes()


def test_parts_of_more_steps_than_a_word_has_room_for_are_refused() -> None:
    deep = ffn_pair(m=16, d_in=32, d_hidden=32 * (MAX_PART_STEPS + 1), d_out=64)
    problem = tiling_problem(deep, H200, tiling((16, 64), (16, 64), split=(1, 2)))
    assert problem == (
        "2 parts of down: a tile has 65536 k-steps of 32, but a plan supports at most 65535, use deeper tiles"
    )


def test_independent_ops_of_unequal_depth_gain_most() -> None:
    """96 tiles on 132 SMs, some with half the k-steps of the others: only even shares give every SM the same work."""
    workload = independent_pair((1024, 1024, 16384), (512, 1024, 8192))
    whole = wgmma((128, 128, 64), num_warps=8, input_stages=4)
    static = ordering(assignment=Assignment.STATIC)

    def forecast_us(tiles: Tiling, order: Ordering) -> float:
        candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=Schedule.of(tiling=tiles, ordering=order))
        (plan,) = plans_for(workload, H200, candidate)
        return simulate(plan).makespan_us

    even = min(forecast_us(replace(whole, split_k=(parts, parts)), static) for parts in (2, 3, 4))
    assert forecast_us(replace(whole, split_k=(2, 2)), STREAM) < 0.9 * min(even, forecast_us(whole, static))
