"""Waits within a task, and weights that run ahead of them: words, legality, proof."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support import mutants, oracle
from tests.support.cases import H200, SMALL, ordering, small_gpu, tiling, wgmma
from tests.support.interpret import interpret, random_tensors
from tuner.core.legal.legality import check_schedule
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.errors import IllegalSchedule, SafetyError, WordError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

BY_TILE = ordering(granularity=Granularity.TILE, wait_position=WaitPosition.SLICE)
#: up: one row of six tiles of 32 columns; down: k-steps of 48 columns, as in docs/schedule-space.md.
SIX = tile_graph(ffn_pair(m=16, d_in=32, d_hidden=192, d_out=32), tiling((16, 32), (16, 32), k=48))


def waits_of(graph: TileGraph, order: Ordering) -> dict[int, list[list[int]]]:
    """By part of the reader: (signals, threshold, step) of its waits."""
    plan = make_plan(graph, order, small_gpu(2))
    readers = plan.tasks[plan.tasks[:, 0] == 1]
    return {
        task[6]: [[a, b, needed, step] for a, b, needed, _, step in plan.waits[task[3] : task[4]].tolist()]
        for task in readers.tolist()
    }


def test_a_task_waits_before_the_first_step_that_reads_what_a_signal_stands_for() -> None:
    chunks = replace(BY_TILE, granularity=Granularity.CHUNK, sync_width=2)
    assert waits_of(SIX, chunks) == {0: [[0, 1, 2, 0], [1, 2, 2, 1], [2, 3, 2, 2]]}
    assert waits_of(SIX, BY_TILE) == {0: [[0, 2, 1, 0], [2, 3, 1, 1], [3, 5, 1, 2], [5, 6, 1, 3]]}
    assert waits_of(SIX, replace(BY_TILE, wait_position=WaitPosition.TASK)) == {0: [[0, 6, 1, 0]]}


def test_a_part_counts_steps_from_its_own_first_one() -> None:
    halves = tile_graph(SIX.workload, replace(SIX.tiling, split_k=(1, 2)))
    assert waits_of(halves, BY_TILE) == {0: [[0, 2, 1, 0], [2, 3, 1, 1]], 1: [[3, 5, 1, 0], [5, 6, 1, 1]]}


def test_a_tall_reader_waits_step_by_step_for_each_row() -> None:
    tall = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=32), tiling((16, 32), (32, 32)))
    assert waits_of(tall, BY_TILE) == {0: [[0, 1, 1, 0], [2, 3, 1, 0], [1, 2, 1, 1], [3, 4, 1, 1]]}


def refused(words: str, workload: Workload, tiles: Tiling, order: Ordering) -> None:
    with pytest.raises(IllegalSchedule) as caught:
        check_schedule(workload, H200, Schedule.of(tiling=tiles, ordering=order))
    assert words in str(caught.value)


PAIR = ffn_pair(m=64, d_in=64, d_hidden=512, d_out=128)
TILES = tiling((64, 64), (64, 64), k=64)


def test_waits_by_slice_are_legal_where_a_later_step_is_the_first_to_read_a_signals_tiles() -> None:
    check_schedule(PAIR, H200, Schedule.of(tiling=TILES, ordering=BY_TILE))
    refused("every signal per row that it waits for", PAIR, TILES, replace(BY_TILE, granularity=Granularity.ROW))
    strided = replace(BY_TILE, granularity=Granularity.STRIDED, sync_width=2)
    check_schedule(PAIR, H200, Schedule.of(tiling=TILES, ordering=strided))
    refused("use wait position task", PAIR, tiling((64, 64), (64, 64), k=128), strided)
    refused("use wait position task", PAIR, replace(TILES, split_k=(1, 8)), BY_TILE)
    alone = replace(BY_TILE, granularity=Granularity.ROW)
    refused("no tile waits for another one", independent_pair((64, 64, 64), (64, 64, 64)), TILES, alone)


def test_run_ahead_has_one_name_for_each_number_of_stages() -> None:
    def of(percent: int) -> Ordering:
        return ordering(run_ahead=percent)

    for stages, held in ((5, {0: 4, 25: 3, 50: 2, 100: 0}), (3, {0: 2, 50: 1, 100: 0})):
        tiles = replace(TILES, num_stages=stages)
        for percent, number in held.items():
            check_schedule(PAIR, H200, Schedule.of(tiling=tiles, ordering=of(percent)))
            assert make_plan(tile_graph(PAIR, tiles), of(percent), H200).words[12] == number
    refused("25 percent of 2 stages are 0, the same as 0 percent: use run-ahead 0", PAIR, tiles, of(25))
    refused("run-ahead of 75 percent: use 0, 25, 50, 100", PAIR, TILES, of(75))
    refused("cannot run ahead: use run-ahead 100", independent_pair((64, 64, 64), (64, 64, 64)), TILES, of(50))
    ring = wgmma((64, 64, 64), num_stages=4)
    graph = tile_graph(PAIR, ring)
    assert [make_plan(graph, of(percent), H200).held_stages for percent in (100, 50, 25, 0)] == [0, 2, 3, 4]
    static = replace(of(25), assignment=Assignment.STATIC)
    assert [plan.held_stages for plan in make_paired_plans(graph, static, H200)] == [3, 3]


def shifted(plan: Plan, wait: int, step: int) -> Plan:
    return mutants.edit_wait(plan, wait, 4, int(plan.waits[wait, 4]) + step)


def test_a_wait_behind_the_step_that_reads_is_refused_with_that_step() -> None:
    plan = make_plan(SIX, BY_TILE, small_gpu(3))
    assert verify(plan, SIX, SMALL, small_gpu(3))
    late = shifted(plan, 1, 1)  # of tile 2, which step 1 reads
    with pytest.raises(SafetyError) as caught:
        verify(late, SIX, SMALL, small_gpu(3))
    assert "task 6 (down tile 0,0) can load its k-step 1 before task 2 (up tile 0,2) is done" in str(caught.value)
    assert "(signals 2..2 >= 1 before step 2)" in str(caught.value)
    assert oracle.faults(late.words.tolist(), SIX) == {"safety"}
    outputs = [interpret(late, SIX, random_tensors(SIX.workload, 0), random.Random(s))["down"] for s in range(40)]
    assert any(np.isnan(output).any() for output in outputs)


def test_a_wait_before_it_is_needed_is_accepted_unless_it_is_passed_over() -> None:
    plan = make_plan(SIX, BY_TILE, small_gpu(3))
    assert verify(shifted(plan, 1, -1), SIX, SMALL, small_gpu(3))
    with pytest.raises(WordError, match="before_step of wait 0 is -1"):
        verify(shifted(plan, 0, -1), SIX, SMALL, small_gpu(3))
    for wrong, problem in (
        (shifted(plan, 2, -2), "are not in the order of their k-steps"),
        (shifted(plan, 3, 1), "of 4 k-steps"),
    ):
        with pytest.raises(SafetyError, match=problem):
            verify(wrong, SIX, SMALL, small_gpu(3))
        assert oracle.faults(wrong.words.tolist(), SIX) == {"safety"}


def test_a_reader_that_stands_before_a_later_step_has_read_the_earlier_ones() -> None:
    """Its first wait was removed, and its last one never ends: it blocks its CTA, but the race exists anyway."""
    plan = make_plan(SIX, BY_TILE, small_gpu(3))
    racy = mutants.edit_wait(plan, 0, 2, 0)
    with pytest.raises(SafetyError, match=r"can load its k-step 0 before task 0 \(up tile 0,0\)"):
        verify(racy, SIX, SMALL, small_gpu(3))
