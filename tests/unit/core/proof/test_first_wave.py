"""Tickets after a statically assigned first wave: words, assignment, residency, and when a wave has no effect."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support import oracle
from tests.support.cases import SMALL, ordering, small_gpu, tiling
from tests.support.interpret import interpret, plain_product, random_tensors
from tests.support.proof import ROOMY
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.task_source import TaskSource
from tuner.core.plan.table.header import FIRST_WAVE, STATIC, TICKET
from tuner.core.plan.table.words import Plan
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Assignment
from tuner.errors import LivenessError, PlanError, ResourceError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

#: Two tile rows, two tile columns each: tasks 0..3 are up's, 4..7 down's.
PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))


def plan_of(graph: TileGraph = PAIR, *, num_ctas: int = 3, assignment: Assignment = Assignment.FIRST_WAVE) -> Plan:
    return make_plan(graph, ordering(len(graph.op_indices), assignment=assignment), small_gpu(num_ctas))


def test_its_words_say_the_wave_and_are_otherwise_those_of_tickets() -> None:
    plan = plan_of()
    assert (plan.assignment, plan.num_first_tasks, plan.num_ctas) == (FIRST_WAVE, 3, 3)
    assert Plan.from_words(plan.words).words.tobytes() == plan.words.tobytes()
    drawn = replace(plan, assignment=TICKET, num_first_tasks=0)
    assert drawn.words.tobytes() == plan_of(assignment=Assignment.TICKET).words.tobytes()


@pytest.mark.parametrize("num_first_tasks", [0, 2, 4, 9])
def test_a_wave_that_has_not_one_task_for_each_cta_is_no_plan(num_first_tasks: int) -> None:
    words = plan_of().words.copy()
    words[10] = num_first_tasks
    with pytest.raises(PlanError, match=f"num_first_tasks is {num_first_tasks}; it must be the 3 CTAs, of 8 tasks"):
        Plan.from_words(words)


def test_each_cta_begins_with_the_task_of_its_number_and_draws_the_rest_in_order() -> None:
    plan = plan_of()
    source = TaskSource(plan)
    assert [source.take(cta) for cta in (2, 0, 0, 2, 1, 0, 1, 2, 0)] == [2, 0, 3, 4, 1, 5, 6, 7, -1]
    assert [plan.first_task(cta) for cta in range(4)] == [0, 1, 2, None]
    assert [plan_of(assignment=Assignment.TICKET).first_task(cta) for cta in range(3)] == [None] * 3


def test_where_nothing_is_left_to_draw_it_is_a_queue_for_each_cta() -> None:
    assert plan_of(num_ctas=8).words.tobytes() == plan_of(num_ctas=8, assignment=Assignment.STATIC).words.tobytes()
    assert plan_of(num_ctas=8).assignment == STATIC


def test_every_cta_must_be_resident_unless_nobody_waits() -> None:
    plan = plan_of()
    assert plan.needs_all_ctas
    assert verify(plan, PAIR, ROOMY, small_gpu(3))
    with pytest.raises(ResourceError, match="queues and first waves need every CTA to be resident"):
        verify(plan, PAIR, ROOMY, small_gpu(2))
    apart = tile_graph(independent_pair((32, 64, 32), (32, 64, 32)), PAIR.tiling)
    assert not plan_of(apart).needs_all_ctas
    assert verify(plan_of(apart), apart, ROOMY, small_gpu(2))


def test_its_order_is_a_linear_extension_as_that_of_tickets() -> None:
    plan = plan_of()
    late = replace(plan, tasks=plan.tasks[::-1].copy())
    with pytest.raises(LivenessError, match="a later ticket than"):
        verify(late, PAIR, SMALL, small_gpu(3))


def by_tile(plan: Plan, *tiles: tuple[int, int, int]) -> Plan:
    """The plan with its tasks in the order of `tiles`."""
    at = [int(np.flatnonzero((plan.tasks[:, :3] == tile).all(axis=1))[0]) for tile in tiles]
    return replace(plan, tasks=plan.tasks[at].copy())


UP, DOWN = [(0, row, col) for row in (0, 1) for col in (0, 1)], [(1, row, col) for row in (0, 1) for col in (0, 1)]


def test_tasks_of_the_wave_may_wait_for_each_other_in_any_order() -> None:
    """Each has its CTA from the start, so the order of their numbers does not matter."""
    four = plan_of(num_ctas=4)
    early = by_tile(four, DOWN[0], UP[1], UP[0], UP[2], UP[3], DOWN[1], DOWN[2], DOWN[3])
    assert oracle.faults(early.words.tolist(), PAIR) == set()
    verify(early, PAIR, SMALL, small_gpu(4))
    drawn = replace(early, assignment=TICKET, num_first_tasks=0)
    with pytest.raises(LivenessError, match="a later ticket than"):
        verify(drawn, PAIR, SMALL, small_gpu(4))


def test_a_task_of_the_wave_that_waits_for_a_ticket_is_a_deadlock() -> None:
    """Its own CTA may draw that ticket early, and then holds it until after the waiting task."""
    late = by_tile(plan_of(num_ctas=3), DOWN[0], UP[1], UP[2], UP[0], UP[3], DOWN[1], DOWN[2], DOWN[3])
    assert oracle.faults(late.words.tolist(), PAIR) == {"liveness"}
    witness = r"task 0 \(down tile 0,0\) waits .* which task 3 \(up tile 0,0\) would post, a later ticket than task 0"
    with pytest.raises(LivenessError, match=witness):
        verify(late, PAIR, SMALL, small_gpu(3))


def test_it_computes_the_product() -> None:
    tensors = random_tensors(PAIR.workload, seed=3)
    wanted = plain_product(PAIR.workload, tensors)
    for seed in range(20):
        made = interpret(plan_of(), PAIR, tensors, random.Random(seed), num_launches=2)
        for name, matrix in wanted.items():
            np.testing.assert_allclose(made[name], matrix, rtol=1e-9, atol=1e-9)
