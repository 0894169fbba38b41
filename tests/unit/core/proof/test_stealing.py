"""CTAs that steal: who draws what, and why they must all be resident and draw in the table's order."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from tests.support import oracle
from tests.support.cases import SMALL, chain_of_three, ordering, small_gpu, tiling
from tests.support.mutants import move
from tests.support.proof import ROOMY
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.task_source import TaskSource
from tuner.core.plan.tile_graph import TileGraph, tile_graph
from tuner.core.plan.words import STEALING, TICKET, Plan
from tuner.core.problem.workload import ffn_pair, independent_pair
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Assignment, Granularity
from tuner.errors import LivenessError, PlanError, ResourceError

#: Two tile rows, two tile columns each: tasks 0..3 are up's, 4..7 down's.
PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
THREE = tile_graph(chain_of_three(32, (32, 32, 64, 32)), tiling((16, 32), (16, 32), (32, 32)))


def plan_of(graph: TileGraph = PAIR, *, num_ctas: int = 4, partition: int = 4, **changes: object) -> Plan:
    stealing = {"assignment": Assignment.STEALING, "partition": partition, **changes}
    return make_plan(graph, ordering(len(graph.workload.ops), **stealing), small_gpu(num_ctas))


def deadlocks(plan: Plan, sides: list[bool], **rules: bool) -> bool:
    return oracle.can_deadlock(oracle.read(plan.words.tolist()), sides, **rules)


def test_the_first_ops_tasks_are_the_first_list_whatever_the_merge() -> None:
    for bands, graph in ((0, PAIR), (1, PAIR), (1, THREE)):
        plan = plan_of(graph, bands=bands)
        assert (plan.assignment, plan.num_first_ctas) == (STEALING, 2)
        is_first = plan.tasks[:, 0] == 0
        assert is_first.tolist() == [True] * plan.num_first_tasks + [False] * (plan.num_tasks - plan.num_first_tasks)
        assert plan.num_first_tasks == graph.num_tasks_of(0)
        assert verify(plan, graph, SMALL, small_gpu(4))
    assert [plan_of(partition=part, num_ctas=8).num_first_ctas for part in (1, 2, 7)] == [1, 2, 7]


def test_one_op_or_one_cta_has_nobody_to_steal_from() -> None:
    alone = tile_graph(PAIR.workload, PAIR.tiling, (1,))
    assert plan_of(alone).assignment == TICKET
    assert plan_of(num_ctas=1).words.tobytes() == plan_of(num_ctas=1, assignment=Assignment.TICKET).words.tobytes()


def test_a_cta_takes_its_sides_tasks_in_order_and_then_the_other_sides() -> None:
    source = TaskSource(plan_of())
    assert [source.take(cta) for cta in (0, 3, 1, 2)] == [0, 4, 1, 5]
    assert [source.take(0) for _ in range(5)] == [2, 3, 6, 7, -1]
    assert source.take(3) == -1
    source = TaskSource(plan_of())
    assert [source.take(2) for _ in range(9)] == [4, 5, 6, 7, 0, 1, 2, 3, -1]


def test_whoever_is_done_steals_until_nothing_is_left() -> None:
    """Of two sides of one CTA each, the first has half of the other's work beside its own."""
    graph = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=1024), tiling((16, 32), (16, 32)))
    plan = plan_of(graph, num_ctas=2)
    timeline = simulate(verify(plan, graph, SMALL, small_gpu(2)))
    tasks = [[span.task for span in spans] for spans in timeline.spans]
    assert sorted(chain.from_iterable(tasks)) == list(range(plan.num_tasks))
    assert tasks[0][: plan.num_first_tasks] == list(range(plan.num_first_tasks))
    assert min(map(len, tasks)) > plan.num_tasks // 3


@pytest.mark.parametrize("graph", [PAIR, THREE], ids=["pair", "three"])
@pytest.mark.parametrize("granularity", [Granularity.ROW, Granularity.TILE])
@pytest.mark.parametrize(("num_ctas", "partition"), [(2, 4), (3, 2), (3, 6), (4, 4)])
def test_no_choice_of_who_draws_what_and_when_ends_in_a_deadlock(
    graph: TileGraph, granularity: Granularity, num_ctas: int, partition: int
) -> None:
    plan = plan_of(graph, num_ctas=num_ctas, partition=partition, granularity=granularity)
    assert not deadlocks(plan, [cta < plan.num_first_ctas for cta in range(num_ctas)])


def test_a_thief_that_draws_a_producer_behind_a_reader_would_deadlock() -> None:
    plan = plan_of(num_ctas=3)
    sides = [True, True, False]
    assert deadlocks(plan, sides, keeps_order=False)
    assert not deadlocks(plan, sides)


def test_one_cta_of_the_first_side_must_be_resident() -> None:
    plan = plan_of(num_ctas=4)
    assert deadlocks(plan, [False, False])
    assert not deadlocks(plan, [True])
    with pytest.raises(ResourceError, match="queues, first waves and stealing need every CTA resident"):
        verify(plan, PAIR, ROOMY, small_gpu(3))


def test_tasks_that_wait_for_nobody_need_nobody_resident() -> None:
    graph = tile_graph(independent_pair((32, 64, 32), (32, 64, 32)), tiling((16, 32), (16, 32)))
    assert verify(plan_of(graph), graph, ROOMY, small_gpu(1))


def test_a_reader_in_front_of_what_it_waits_for_is_refused_with_the_cycle() -> None:
    reader_first = move(plan_of(num_ctas=2), 4, 0, 0)
    assert deadlocks(reader_first, [True, False])
    with pytest.raises(LivenessError, match=r"up tile 0,0\) would post, which|later in the table than task 0"):
        verify(reader_first, PAIR, SMALL, small_gpu(2))


def test_both_sides_must_have_ctas() -> None:
    for first in (0, 4):
        with pytest.raises(PlanError, match="one at least for each of the two lists"):
            verify(replace(plan_of(), num_first_ctas=first), PAIR, SMALL, small_gpu(4))
