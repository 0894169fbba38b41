from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import mutants
from tests.support.cases import H200, SMALL, ordering, small_gpu, tiling, wgmma
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_schedule, tiling_problem
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, part_steps, tile_graph
from tuner.core.plan.order.split_k import num_split_tiles, num_steps, num_tiles, slot_bytes, waves
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import joined, make_paired_plans
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, SplitOrder, SplitTiles, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.mma_tilings import SPLITS, MmaTilings
from tuner.errors import CoverageError, IllegalSchedule, LivenessError, PlanError, SafetyError, WordError
from tuner.ops.gemm.pairs import ffn_pair

#: One tile row: up has 4 tiles, down has 2 tiles in 2 parts, each of which reads half of up's tiles.
PAIR = tile_graph(ffn_pair(m=16, d_in=32, d_hidden=128, d_out=64), tiling((16, 32), (16, 32), split=(1, 2)))
#: A decode step of Llama 3 8B.
LLAMA = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)


@given(st.integers(1, 300), st.booleans(), st.data())
def test_parts_share_the_steps_evenly_and_leave_none_out(num_k_steps: int, strided: bool, data: st.DataObject) -> None:
    num_parts = data.draw(st.integers(1, min(16, num_k_steps)))
    parts = [part_steps(num_k_steps, part, num_parts, strided=strided) for part in range(num_parts)]
    taken = [step for steps in parts for step in steps]
    assert sorted(taken) == list(range(num_k_steps))
    assert strided or taken == sorted(taken)
    sizes = list(map(len, parts))
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def waits_of_parts(plan: Plan) -> dict[int, list[list[int]]]:
    """Part -> the waits of down's first tile."""
    mine = [task for task in plan.tasks.tolist() if task[0] == 1 and task[2] == 0]
    return {task[6]: plan.waits[task[3] : task[4], :3].tolist() for task in mine}


def test_a_part_waits_for_the_producer_tiles_of_its_own_columns() -> None:
    def waits(granularity: Granularity, width: int = 1) -> dict[int, list[list[int]]]:
        order = ordering(granularity=granularity, sync_width=width)
        return waits_of_parts(make_plan(PAIR, order, small_gpu(3)))

    assert waits(Granularity.ROW) == {0: [[0, 1, 4]], 1: [[0, 1, 4]]}
    assert waits(Granularity.CHUNK, 2) == {0: [[0, 1, 2]], 1: [[1, 2, 2]]}
    assert waits(Granularity.TILE) == {0: [[0, 2, 1]], 1: [[2, 4, 1]]}
    assert waits(Granularity.STRIDED, 2) == {0: [[0, 2, 2]], 1: [[0, 2, 2]]}


def test_each_part_of_a_decode_step_waits_for_one_signal() -> None:
    graph = tile_graph(LLAMA, tiling((16, 112), (16, 128), k=64, num_stages=4, split=(1, 4)))
    plan = make_plan(graph, ordering(granularity=Granularity.CHUNK, sync_width=32), H200)
    parts = plan.tasks[plan.tasks[:, 0] == 1]
    assert (plan.num_signals, len(parts)) == (4, 128)
    for part in range(4):
        (records,) = {(begin, end) for *_, begin, end in parts[parts[:, 6] == part][:, :5].tolist()}
        assert plan.waits[slice(*records)].tolist() == [[part, part + 1, 32, 32, 0]]
    verify(plan, graph, SMALL, H200)


STRIDED = PAIR.with_parts(strided=True)
BY_SLICE = ordering(granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, split_order=SplitOrder.STRIDED)


def sliced_waits_of_parts(graph: TileGraph, order: Ordering) -> dict[int, list[list[int]]]:
    """Part -> (signals, threshold, step) of the waits of down's first tile."""
    plan = make_plan(graph, order, small_gpu(3))
    return {
        part: [[*wait[:3], wait[4]] for wait in plan.waits[begin:end].tolist()]
        for op, _, col, begin, end, _, part, *_ in plan.tasks.tolist()
        if (op, col) == (1, 0)
    }


def test_strided_parts_wait_for_every_so_many_th_column_from_the_first_on() -> None:
    """up's tiles are as wide as down's k-steps: part 0 reads tiles 0 and 2, part 1 tiles 1 and 3."""
    chunks = replace(BY_SLICE, granularity=Granularity.CHUNK, sync_width=2)
    rows = replace(BY_SLICE, granularity=Granularity.ROW, wait_position=WaitPosition.TASK)
    at_once = replace(BY_SLICE, wait_position=WaitPosition.TASK)
    each = {0: [[0, 1, 1, 0], [2, 3, 1, 1]], 1: [[1, 2, 1, 0], [3, 4, 1, 1]]}
    assert sliced_waits_of_parts(PAIR, BY_SLICE) == each
    assert sliced_waits_of_parts(PAIR, chunks) == {part: [[0, 1, 2, 0], [1, 2, 2, 1]] for part in (0, 1)}
    assert sliced_waits_of_parts(PAIR, at_once) == {0: [[0, 1, 1, 0], [2, 3, 1, 0]], 1: [[1, 2, 1, 0], [3, 4, 1, 0]]}
    assert sliced_waits_of_parts(PAIR, rows) == {part: [[0, 1, 4, 0]] for part in (0, 1)}


def test_the_sketch_of_strided_parts_in_the_docs_is_true() -> None:
    wide = ffn_pair(m=16, d_in=32, d_hidden=256, d_out=32)  # 8 tiles, a signal for 2 of them, 4 k-steps
    graph = tile_graph(wide, replace(tiling((16, 32), (16, 32), k=64, split=(1, 2)), num_stages=2))
    chunks = replace(BY_SLICE, granularity=Granularity.CHUNK, sync_width=2)
    contiguous = replace(chunks, split_order=SplitOrder.CONTIGUOUS)
    assert sliced_waits_of_parts(graph, contiguous) == {
        0: [[0, 1, 2, 0], [1, 2, 2, 1]],
        1: [[2, 3, 2, 0], [3, 4, 2, 1]],
    }
    assert sliced_waits_of_parts(graph, chunks) == {0: [[0, 1, 2, 0], [2, 3, 2, 1]], 1: [[1, 2, 2, 0], [3, 4, 2, 1]]}


def test_the_words_say_in_which_order_parts_take_their_steps_and_the_proof_believes_them() -> None:
    strided, plain = (
        make_plan(PAIR, order, small_gpu(3))
        for order in (BY_SLICE, replace(BY_SLICE, split_order=SplitOrder.CONTIGUOUS))
    )
    assert (strided.words[13], plain.words[13]) == (1, 0)
    assert verify(strided, PAIR, SMALL, small_gpu(3)).graph.strided_parts
    assert not verify(plain, STRIDED, SMALL, small_gpu(3)).graph.strided_parts
    refused(replace(plain, strided_parts=True), CoverageError, "part 1 of 2): 2 k-steps from 2 to 6 of 4")
    refused(replace(strided, strided_parts=False), CoverageError, "down tile 0,0: 2 of its parts have k-step 1")
    other = strided.tasks.copy()
    other[:, 9:] = plain.tasks[:, 9:]
    racy = replace(strided, tasks=other, strided_parts=False)
    refused(racy, SafetyError, "task 4 (down tile 0,0 part 0 of 2) can load its k-step 1 before task 1")
    plans = [
        replace(plan, strided_parts=strided)
        for plan, strided in zip(make_paired_plans(PAIR, BY_SLICE, small_gpu(3)), (True, False), strict=True)
    ]
    with pytest.raises(PlanError, match="the split tiles of only one of them are strided"):
        joined(*plans)


def test_a_split_order_that_is_none_is_refused() -> None:
    def problem(split: tuple[int, ...], order: Ordering) -> str:
        tiles = tiling((64, 64), (64, 64), k=64, split=split)
        with pytest.raises(IllegalSchedule) as caught:
            check_schedule(
                ffn_pair(m=64, d_in=64, d_hidden=512, d_out=128), H200, Schedule.of(tiling=tiles, ordering=order)
            )
        return str(caught.value)

    assert "no op is split: use split order contiguous" in problem((), BY_SLICE)
    assert ("each part is one k-step, so their order does not matter: use split order contiguous") in problem(
        (1, 8), BY_SLICE
    )
    alternate = replace(BY_SLICE, granularity=Granularity.STRIDED, sync_width=2)
    assert "use wait position task" in problem((1, 4), alternate)
    contiguous = replace(BY_SLICE, granularity=Granularity.CHUNK, sync_width=2, split_order=SplitOrder.CONTIGUOUS)
    assert "use wait position task" in problem((1, 4), contiguous)
    workload = ffn_pair(m=64, d_in=64, d_hidden=512, d_out=128)
    legal = replace(contiguous, split_order=SplitOrder.STRIDED)
    check_schedule(workload, H200, Schedule.of(tiling=tiling((64, 64), (64, 64), k=64, split=(1, 4)), ordering=legal))


def test_a_split_order_has_a_json_form_where_it_is_not_the_plain_one() -> None:
    one = Schedule.of(tiling=PAIR.tiling, ordering=BY_SLICE)
    assert one.to_json()["ordering"]["split_order"] == "strided"
    assert Schedule.from_json(one.to_json()) == one
    plain = one.but(ordering=replace(BY_SLICE, split_order=SplitOrder.CONTIGUOUS))
    assert "split_order" not in plain.to_json()["ordering"]
    assert Schedule.from_json(plain.to_json()) == plain
    assert "strided-parts" in str(one)
    assert "strided-parts" not in str(plain)


def refused(plan: Plan, error: type[PlanError], *witness: str) -> None:
    with pytest.raises(error) as caught:
        verify(plan, PAIR, SMALL, small_gpu(3))
    for words in witness:
        assert words in caught.value.witness


def test_parts_that_do_not_make_up_their_tile_are_refused() -> None:
    plan = make_plan(PAIR, ordering(), small_gpu(3))  # tasks 4..7: down 0,0 part 0 and 1, down 0,1 part 0 and 1
    refused(mutants.drop(plan, 5), CoverageError, "down tile 0,0 part 1 of 2: no task computes it")
    refused(mutants.double(plan, 4), CoverageError, "down tile 0,0 part 0 of 2", "tasks 4 and 8 compute it")
    refused(mutants.edit(plan, 5, 6, 0), CoverageError, "down tile 0,0 part 1 of 2: no task computes it")
    refused(mutants.edit(plan, 5, 7, 3), CoverageError, "part 1 of 3, not of 2")
    refused(mutants.edit(plan, 5, 6, 2), CoverageError, "part 2 of 2, not of 2")
    refused(mutants.edit(plan, 0, 7, 2), CoverageError, "up tile 0,0 part 0 of 2", "not of 1")
    whole = mutants.edit(plan, 4, 7, 0)
    refused(whole, CoverageError, "down tile 0,0 part 1 of 2: tasks 4 and 5 compute it")


def test_tiles_that_do_not_meet_in_a_slot_of_their_own_are_refused() -> None:
    plan = make_plan(PAIR, ordering(), small_gpu(3))
    assert plan.tasks[4:, 8].tolist() == [0, 0, 1, 1]
    refused(mutants.edit(plan, 5, 8, 1), CoverageError, "part 0 of 2) stores its sums in slot 0", "in slot 1")
    shared = mutants.edit(mutants.edit(plan, 6, 8, 0), 7, 8, 0)
    refused(shared, CoverageError, "task 4 (down tile 0,0 part 0 of 2) and task 6 (down tile 0,1 part 0 of 2): slot 0")
    outside = mutants.edit(mutants.edit(plan, 6, 8, 2), 7, 8, 2)
    refused(outside, CoverageError, "stores its sums in slot 2 of 2")
    refused(mutants.edit(mutants.edit(plan, 4, 8, -1), 5, 8, -1), WordError, "slot of task 4 is -1")
    refused(replace(plan, num_split_tiles=1), CoverageError, "stores its sums in slot 1 of 1")
    verify(mutants.edit(replace(plan, num_split_tiles=9), 0, 8, 7), PAIR, SMALL, small_gpu(3))


#: 14 and 11 tiles with at least 2 k-steps.
TWO_WAVES = ffn_pair(m=16, d_in=64, d_hidden=448, d_out=352)


@pytest.mark.parametrize(
    ("split", "num_sms", "changes", "sentence"),
    [
        ((), 4, {}, "no op is split, so there is no tail to split: use split_tiles all"),
        (
            (1, 3),
            4,
            {"assignment": Assignment.SHARES},
            ("shares are assigned as contiguous ranges and have no last wave"),
        ),
        ((1, 3), 4, {"part_major": True}, "the parts of a tail run at the same time, so their order does not matter"),
        ((2, 3), 25, {}, "none or all of the 25 tiles in parts: use split_tiles all"),
        ((1, 3), 13, {}, "none or all of the 11 tiles in parts: use split_tiles all"),
        ((2, 1), 7, {}, "none or all of the 14 tiles in parts: use an empty split_k"),
        ((1, 3), 11, {}, None),  # 3 of the 25 tiles, fused
        ((2, 1), 4, {}, None),  # launched alone, the last 2 of 14
        ((1, 3), 4, {"assignment": Assignment.STATIC, "partition": 3}, None),
    ],
)
def test_a_tail_that_is_none_or_everything_is_refused(
    split: tuple[int, ...], num_sms: int, changes: dict[str, Any], sentence: str | None
) -> None:
    tiles = tiling((16, 32), (16, 32), split=split)
    one = Schedule.of(tiling=tiles, ordering=ordering(split_tiles=SplitTiles.TAIL, **changes))
    if sentence is None:
        check_schedule(TWO_WAVES, small_gpu(num_sms), one)
        return
    with pytest.raises(IllegalSchedule) as refusal:
        check_schedule(TWO_WAVES, small_gpu(num_sms), one)
    assert sentence in str(refusal.value)


def test_waves_of_an_op_alone_count_whole_tiles_and_parts() -> None:
    assert waves(128, 1, 132) == (0, 1)
    assert waves(60, 4, 132) == (0, 2)
    assert waves(576, 2, 132) == (4, 1)  # 48 tiles are left
    assert waves(576, 4, 132) == (4, 2)
    assert waves(264, 3, 132) == (2, 0)


def test_a_split_tail_takes_little_workspace_and_a_shorter_forecast() -> None:
    workload = ffn_pair(m=4096, d_in=4096, d_hidden=14336, d_out=4096)
    both = wgmma((128, 184, 64), (128, 248, 64), num_warps=8, input_stages=4)
    tails = replace(both, split_k=(1, 2))
    assert num_tiles(workload.tile_ops[1], tails.tiles[1]) == 544  # and 2,496 of up: 4 of 3,040 remain on 132 SMs
    order = ordering(assignment=Assignment.STATIC, split_tiles=SplitTiles.TAIL)
    check_schedule(workload, H200, Schedule.of(tiling=tails, ordering=order))
    with pytest.raises(IllegalSchedule, match="the parts' sums take"):
        check_schedule(workload, H200, Schedule.of(tiling=replace(both, split_k=(1, 8)), ordering=ordering()))
    (fused,) = plans_for(workload, H200, fused_of(tails, order))
    _, down = plans_for(workload, H200, replace(fused_of(tails, order), plan_kind=PlanKind.TWO_LAUNCHES))
    assert (fused.plan.num_split_tiles, down.plan.num_split_tiles) == (4, 16)
    assert down.plan.num_split_tiles * slot_bytes(workload, tails) == 16 * 2 * 128 * 248 * 4
    _, whole = plans_for(
        workload,
        H200,
        replace(fused_of(both, replace(order, split_tiles=SplitTiles.ALL)), plan_kind=PlanKind.TWO_LAUNCHES),
    )
    assert simulate(down).makespan_us < simulate(whole).makespan_us


def fused_of(tiles: Tiling, order: Ordering) -> Candidate:
    return Candidate(plan_kind=PlanKind.FUSED, schedule=Schedule.of(tiling=tiles, ordering=order))


def test_a_tile_may_be_whole_where_its_op_is_split() -> None:
    plan = make_plan(PAIR, ordering(), small_gpu(3))
    verify(mutants.edit(mutants.drop(plan, 5), 4, 7, 0), PAIR, SMALL, small_gpu(3))


def test_a_whole_tile_that_waits_like_a_part_is_a_race() -> None:
    plan = make_plan(PAIR, ordering(granularity=Granularity.CHUNK, sync_width=2), small_gpu(3))
    refused(mutants.edit(mutants.drop(plan, 5), 4, 7, 0), SafetyError, "task 4 (down tile 0,0)")


def test_a_post_of_a_split_tile_is_that_of_its_last_part() -> None:
    graph = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=32, d_out=32), tiling((16, 32), (16, 32), split=(2, 1)))
    plan = make_plan(graph, ordering(), small_gpu(1))
    verify(plan, graph, SMALL, small_gpu(1))
    early = mutants.move(plan, 2, 0, 1)  # down between the two parts of up
    with pytest.raises(LivenessError, match=r"task 1 \(down tile 0,0\) waits for signal 0 \(0 of 1 posts\)"):
        verify(early, graph, SMALL, small_gpu(1))
    apart = mutants.edit(plan, 1, 5, -1)
    with pytest.raises(CoverageError, match="the parts of a tile disagree"):
        verify(apart, graph, SMALL, small_gpu(1))


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ((2,), "1 splits for 2 ops"),
        ((1, 5), "5 parts: use one of 1, 2, 3"),
        ((1, 0), "0 parts: use one of 1, 2, 3"),
        ((1, 1), "no op is split: use an empty split_k"),
        ((4, 1), "4 parts of up: a tile has 2 k-steps of 32; use no more"),
    ],
)
def test_a_split_that_is_none_is_refused(split: tuple[int, ...], sentence: str) -> None:
    workload = ffn_pair(m=16, d_in=64, d_hidden=512, d_out=64)
    problem = tiling_problem(workload, H200, tiling((16, 64), (16, 64), split=split))
    assert problem is not None
    assert sentence in problem


def test_the_sums_of_all_parts_have_to_fit_the_workspace() -> None:
    workload = ffn_pair(m=2048, d_in=4096, d_hidden=14336, d_out=4096)
    tiles = tiling((128, 128), (128, 128), k=64, num_stages=3, num_warps=8, split=(2, 2))
    assert num_split_tiles(workload, tiles) == 16 * (112 + 32)
    assert slot_bytes(workload, tiles) == 2 * 128 * 128 * 4
    assert slot_bytes(workload, replace(tiles, split_k=(1, 3))) == 3 * 128 * 128 * 4
    check_schedule(workload, H200, Schedule.of(tiling=tiles, ordering=ordering()))
    with pytest.raises(IllegalSchedule) as refusal:
        check_schedule(workload, H200, Schedule.of(tiling=replace(tiles, split_k=(8, 8)), ordering=ordering()))
    problem = str(refusal.value).partition(": ")[2]
    assert problem == "the parts' sums take 1152 MiB of workspace, more than 512: use fewer parts"


@pytest.mark.slow
def test_splits_are_offered_where_an_op_has_fewer_tiles_than_there_are_sms() -> None:
    space, tilings = space_of(LLAMA, H200), MmaTilings(LLAMA, H200)
    wide, narrow = Tile(m=16, n=128, k=64), Tile(m=16, n=32, k=64)
    assert tilings.parts(1, wide) == (1, 3, 4)  # 32 tiles
    assert tilings.parts(0, wide) == tilings.parts(1, narrow) == (1,)  # 112 and 128 tiles
    for chosen in [offered for offered in space.tilings if offered.engine is Engine.MMA][::50]:
        for op, tile in enumerate(chosen.tiles):
            parts = chosen.num_parts(op)
            assert parts in SPLITS
            assert parts == 1 or num_tiles(LLAMA.tile_ops[op], tile) * parts <= H200.num_sms
            assert num_steps(LLAMA.tile_ops[op], tile) >= 4 * parts or parts == 1


def test_the_forecast_gains_by_splitting_a_few_deep_tiles_and_not_many() -> None:
    def forecast_us(m: int, split: tuple[int, ...]) -> float:
        workload = replace(LLAMA, ops=tuple(replace(op, m=m) for op in LLAMA.tile_ops))
        tiles = tiling((16 if m == 16 else 128, 128), (16 if m == 16 else 128, 128), k=64, num_stages=4, split=split)
        tiles = replace(tiles, num_warps=8)
        order = ordering(assignment=Assignment.TICKET)
        check_schedule(workload, H200, Schedule.of(tiling=tiles, ordering=order))
        graph = tile_graph(workload, tiles)
        return simulate(verify(make_plan(graph, order, H200), graph, SMALL, H200)).makespan_us

    assert forecast_us(16, (1, 4)) < 0.8 * forecast_us(16, ())
    assert forecast_us(2048, (1, 2)) > forecast_us(2048, ())


def test_the_last_part_of_a_tile_ends_after_the_others() -> None:
    plan = make_plan(PAIR, ordering(), small_gpu(8))
    timeline = simulate(verify(plan, PAIR, SMALL, small_gpu(8)))
    ends = {tuple(plan.tasks[task, [0, 2, 6]].tolist()): end for _, task, *_, end in timeline.rows}
    for col in (0, 1):
        assert abs(ends[1, col, 0] - ends[1, col, 1]) > 0.2  # the sums are read, and the tile is stored
    for lane in timeline.spans:
        assert all(before.end_us <= after.begin_us for before, after in pairwise(lane))


def test_a_reader_behind_a_part_in_its_queue_still_has_to_wait_for_both() -> None:
    graph = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=32, d_out=32), tiling((16, 32), (16, 32), split=(2, 1)))
    plan = make_plan(graph, ordering(assignment=Assignment.STATIC), small_gpu(2))
    assert plan.queues.tolist() == [0, 2, 3]  # up part 0 and then down; up part 1
    unwaited = mutants.edit(plan, 1, 4, int(plan.tasks[1, 3]))
    with pytest.raises(
        SafetyError, match=r"task 1 \(down tile 0,0\) can load its k-step 0 before task 0 \(up tile 0,0 part 0 of 2"
    ):
        verify(unwaited, graph, SMALL, small_gpu(2))
