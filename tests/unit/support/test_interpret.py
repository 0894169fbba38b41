from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import mutants
from tests.support.cases import ordered_graphs, ordering, small_gpu, tiling
from tests.support.interpret import interpret, plain_product, random_tensors
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.header import TICKET
from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.ordering import Ordering
from tuner.errors import LivenessError
from tuner.ops.gemm.pairs import ffn_pair

PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))


@settings(max_examples=25)
@given(ordered_graphs(), st.integers(0, 2**32))
def test_a_plan_computes_the_plain_product_in_any_interleaving(
    case: tuple[TileGraph, Ordering, Gpu], seed: int
) -> None:
    graph, order, gpu = case
    plan, rng = make_plan(graph, order, gpu), random.Random(seed)
    tensors = random_tensors(graph.workload, seed % 100)
    wanted = plain_product(graph.workload, tensors)
    num_resident = rng.randint(1, plan.num_ctas) if plan.assignment == TICKET else None
    outputs = interpret(plan, graph, tensors | wanted, rng, num_resident=num_resident, num_launches=2)
    assert list(outputs) == [graph.workload.tile_ops[op].name for op in graph.op_indices]
    for name, output in outputs.items():
        np.testing.assert_allclose(output, wanted[name], err_msg=name)


def test_a_missing_wait_shows_as_nan_in_some_interleaving() -> None:
    tensors = random_tensors(PAIR.workload, 0)
    plan = make_plan(PAIR, ordering(), small_gpu(3))
    tasks = plan.tasks.copy()
    tasks[:, 4] = tasks[:, 3]
    racy = replace(plan, tasks=tasks)
    outputs = [interpret(racy, PAIR, tensors, random.Random(seed))["down"] for seed in range(20)]
    assert any(np.isnan(output).any() for output in outputs)
    assert all(not np.isnan(interpret(plan, PAIR, tensors, random.Random(s))["down"]).any() for s in range(20))


def test_a_wrong_step_per_launch_shows_in_the_second_launch() -> None:
    tensors = random_tensors(PAIR.workload, 0)
    plan = mutants.edit_wait(make_plan(PAIR, ordering(), small_gpu(3)), 0, 3, 0)
    assert not any(np.isnan(interpret(plan, PAIR, tensors, random.Random(s))["down"]).any() for s in range(20))
    second = [interpret(plan, PAIR, tensors, random.Random(s), num_launches=2)["down"] for s in range(20)]
    assert any(np.isnan(output).any() for output in second)


def test_a_deadlock_names_the_tasks_that_are_held() -> None:
    plan = mutants.edit_wait(make_plan(PAIR, ordering(), small_gpu(1)), 0, 2, 3)
    with pytest.raises(LivenessError, match=r"none of these can continue: task 4 \(down tile 0,0\)"):
        interpret(plan, PAIR, random_tensors(PAIR.workload, 0), random.Random(0))
