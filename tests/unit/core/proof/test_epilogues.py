"""Reads in a task's epilogue are proven: residuals and norms of earlier ops of the launch."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support import mutants
from tests.support.cases import SMALL, adds, gemms, ordering, small_gpu, tiling
from tests.support.chain_graphs import CHAIN_GRAPHS
from tests.support.interpret import interpret, plain_product, random_tensors
from tests.support.proof import random_ordering
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import EPILOGUE_STEP, Plan
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Granularity
from tuner.errors import SafetyError

#: Op b adds what a writes, and waits for nothing else.
SIBLINGS = tile_graph(
    gemms(32, ("a", "x", 64, 32, {}), ("b", "y", 64, 32, adds("a")), ("c", "b", 32, 64, {"norm": "b"})),
    tiling((16, 32), (16, 64), (16, 32), split=(1, 1, 2)),
)


def plan_of(graph: TileGraph, granularity: Granularity = Granularity.TILE) -> Plan:
    return make_plan(graph, ordering(len(graph.op_indices), granularity=granularity), small_gpu(3))


@pytest.mark.parametrize("graph", CHAIN_GRAPHS, ids=lambda graph: "-".join(op.name for op in graph.workload.ops))
def test_a_chain_in_any_order_is_the_plain_product(graph: TileGraph) -> None:
    """Outputs and squares are NaN before each launch, so a read that is too early shows."""
    rng, tensors = random.Random(1), random_tensors(graph.workload, 1)
    wanted = plain_product(graph.workload, tensors)
    for _ in range(8):
        plan = make_plan(graph, random_ordering(graph, rng), small_gpu(2))
        verify(plan, graph, SMALL, small_gpu(2))
        for name, matrix in interpret(plan, graph, tensors, rng, num_launches=2).items():
            np.testing.assert_allclose(matrix, wanted[name], rtol=1e-9, atol=1e-9)


def test_a_launch_of_its_own_reads_what_earlier_launches_wrote() -> None:
    graph = CHAIN_GRAPHS[0]
    tensors, rng = random_tensors(graph.workload, 2), random.Random(2)
    wanted = plain_product(graph.workload, tensors)
    for run in ((0, 1), (2,), (3,)):
        alone = tile_graph(graph.workload, graph.tiling, run)
        plan = make_plan(alone, ordering(4), small_gpu(2))
        verify(plan, alone, SMALL, small_gpu(2))
        tensors |= interpret(plan, alone, tensors, rng)
    for name, matrix in wanted.items():
        np.testing.assert_allclose(tensors[name], matrix, rtol=1e-9, atol=1e-9)


def late_task(plan: Plan) -> int:
    """The index of a task whose last wait is for its epilogue."""
    waiting = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])
    return int(waiting[plan.waits[plan.tasks[waiting, 4] - 1, 4] == EPILOGUE_STEP][0])


def test_a_dropped_residual_wait_is_refused_with_its_witness() -> None:
    plan = plan_of(SIBLINGS)
    task = late_task(plan)
    broken = mutants.edit(plan, task, 4, int(plan.tasks[task, 4]) - 1)
    with pytest.raises(SafetyError, match=r"b tile 0,0\) can reach its epilogue before task 0 \(a tile 0,0\) is done"):
        verify(broken, SIBLINGS, SMALL, small_gpu(3))


def test_a_part_that_waits_for_no_share_of_a_norm_but_its_own_columns_is_refused() -> None:
    graph = tile_graph(
        gemms(16, ("a", "x", 64, 32, {}), ("b", "a", 32, 64, {"norm": "a"})), tiling((16, 32), (16, 32), split=(1, 2))
    )
    plan = plan_of(graph)
    records = {tuple(plan.waits[begin:end, 4]) for begin, end in plan.tasks[2:, 3:5].tolist()}
    assert records == {(0, EPILOGUE_STEP)}
    task = late_task(plan)
    with pytest.raises(SafetyError, match="can reach its epilogue before"):
        verify(mutants.edit(plan, task, 4, int(plan.tasks[task, 4]) - 1), graph, SMALL, small_gpu(3))
    whole = plan_of(graph, Granularity.ROW)  # the row's signal covers all shares
    assert (whole.waits[:, 4] == 0).all()
    verify(whole, graph, SMALL, small_gpu(3))


def test_a_wait_for_an_epilogue_that_reads_nothing_is_out_of_its_place() -> None:
    plan = plan_of(SIBLINGS)
    waits = np.concatenate((plan.waits, [[0, 1, 0, 1, EPILOGUE_STEP]])).astype(np.int32)
    tasks = plan.tasks.copy()
    tasks[0, 3:5] = len(plan.waits), len(waits)
    with pytest.raises(SafetyError, match=r"task 0 \(a tile .*: its waits .* before the epilogue\) are at a k-step"):
        verify(replace(plan, tasks=tasks, waits=waits), SIBLINGS, SMALL, small_gpu(3))
