"""Counts that are known only on the GPU: the proof holds for every value, or the plan is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product as every

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import mutants
from tests.support.box_graphs import BoxGraph, box_graph
from tests.support.experts import (
    EXPERTS,
    ROUTED,
    TOKENS,
    ExpertTiles,
    answers,
    bounds_of,
    inputs,
    product,
    routed_graph,
    total,
    with_all_tokens,
)
from tests.support.halo_ops import prove, random_plan
from tests.support.task_machine import launch_plan
from tuner.core.plan.graph.boxes import Bound, RunTimeInput
from tuner.core.plan.graph.cover import Waits
from tuner.core.plan.table.words import Plan
from tuner.core.proof.run_time import least_steps
from tuner.core.schedule.ordering import Granularity, WaitPosition
from tuner.errors import CoverageError, LivenessError, SafetyError


def run(plan: Plan, graph: BoxGraph, routed: tuple[int, ...], seed: int, num_launches: int = 2) -> bool:
    """Whether launches with the counts `routed` compute the right result; they may also hang."""
    tensors, values = inputs(seed), {"routed": routed}
    arithmetic = {op: ExpertTiles(space, values) for op, space in graph.spaces.items()}
    made = launch_plan(plan, graph, arithmetic, tensors, random.Random(seed), num_launches=num_launches, values=values)
    wanted = answers(tensors, routed)
    return all(np.allclose(made[name], wanted[name], equal_nan=True) for name in wanted)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.integers(0, 2),
    st.sampled_from((1, 2)),
    st.sampled_from((2, 3, 6)),
    st.lists(st.integers(0, TOKENS), min_size=EXPERTS, max_size=EXPERTS),
    st.integers(0, 2**32),
)
def test_a_proven_plan_computes_what_there_is_at_any_value(
    least: int, parts: int, tile: int, routed: list[int], seed: int
) -> None:
    limit = RunTimeInput(name="routed", count=EXPERTS, least=least, most=TOKENS)
    graph, rng = routed_graph(limit=limit, parts=parts, tile=tile), random.Random(seed)
    plan = random_plan(graph, rng, num_ctas=rng.randint(1, 4), position=WaitPosition.TASK)
    prove(plan, graph)
    assert run(plan, graph, tuple(max(least, count) for count in routed), seed)


def sliced(limit: RunTimeInput = ROUTED) -> tuple[BoxGraph, Plan]:
    """A sum whose task waits for tokens before the steps that read them."""
    graph = box_graph(product("a", "x", limit=limit), product("b", "a", limit=limit), total("t", "b", limit=limit))
    plans = (
        random_plan(graph, random.Random(seed), num_ctas=4, granularity=Granularity.TILE, position=WaitPosition.SLICE)
        for seed in range(8)
    )
    return graph, next(plan for plan in plans if not plan.queues.size)


@pytest.mark.parametrize("least", range(TOKENS + 1))
def test_a_wait_within_a_task_is_refused_unless_its_step_is_there_at_every_value(least: int) -> None:
    """Steps of two tokens: the third step's wait is only reached with five or more tokens."""
    graph, plan = sliced(RunTimeInput(name="routed", count=EXPERTS, least=least, most=TOKENS))
    assert max(plan.waits[:, 4]) == 2
    if least > 4:
        prove(plan, graph)
        return
    has = -(-least // 2)
    late = rf"\(t tile \d,0\) waits for signals .* before step {max(1, has)}; with routed = {least} it has {has} steps"
    with pytest.raises(LivenessError, match=late):
        prove(plan, graph)


def chained(position: WaitPosition) -> tuple[BoxGraph, Plan]:
    """An op that reads the sums, and late all tokens of the first op, whose number is fixed. It waits only for the
    sums: these wait for the second op, which waits for the first one."""
    first = replace(product("a", "x"), bounds=())
    second = replace(product("b", "a"), bounds=bounds_of("b"))
    graph = box_graph(first, second, total("t", "b"), with_all_tokens("u", "t", "a"))
    (late,) = graph.late_edges
    assert graph.waits_for(late) is Waits.NEVER
    plans = (
        random_plan(graph, random.Random(seed), num_ctas=6, granularity=Granularity.TILE, position=position)
        for seed in range(8)
    )
    return graph, next(plan for plan in plans if not plan.queues.size)


def test_what_lies_behind_a_wait_that_is_passed_over_may_not_be_there() -> None:
    """Such a plan is refused for this reason, not because of its own reads: no reader depends on tokens that are
    missing."""
    for position, is_kept in ((WaitPosition.TASK, True), (WaitPosition.SLICE, False)):
        graph, plan = chained(position)
        arithmetic = {op: ExpertTiles(space, {"routed": (0,) * EXPERTS}) for op, space in graph.spaces.items()}
        runs = [
            launch_plan(plan, graph, arithmetic, inputs(0), random.Random(seed), values={"routed": (0,) * EXPERTS})
            for seed in range(60)
        ]
        assert all(not np.isnan(made["u"]).any() for made in runs) is is_kept
        if is_kept:
            prove(plan, graph)
            continue
        with pytest.raises(LivenessError, match="posts without that wait"):
            prove(plan, graph)


def test_every_value_of_small_ranges_is_run() -> None:
    graph = routed_graph()
    plan = random_plan(graph, random.Random(3), num_ctas=2, granularity=Granularity.ROW, position=WaitPosition.TASK)
    prove(plan, graph)
    for routed in every((0, 1, 2, 5, 6), repeat=EXPERTS):
        assert run(plan, graph, routed, sum(routed), num_launches=1)


def test_a_task_without_its_wait_is_refused_and_reads_too_early_at_some_value() -> None:
    graph = routed_graph()
    plan = random_plan(graph, random.Random(5), num_ctas=3, granularity=Granularity.TILE, position=WaitPosition.TASK)
    task = int(np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3])[-1])
    broken = mutants.edit(plan, task, 4, int(plan.tasks[task, 3]))
    with pytest.raises(SafetyError, match="when it reads"):
        prove(broken, graph)
    assert not all(run(broken, graph, (TOKENS,) * EXPERTS, seed, num_launches=1) for seed in range(40))


def test_tiles_that_end_before_the_largest_value_are_refused() -> None:
    limit = RunTimeInput(name="routed", count=EXPERTS, least=0, most=TOKENS + 1)
    graph = routed_graph(limit=limit)
    plan = random_plan(graph, random.Random(0), num_ctas=2, position=WaitPosition.TASK)
    with pytest.raises(CoverageError, match=r"a's boxes of a reach to 6 in dimension 1; routed is 0 to 7"):
        prove(plan, graph)


def test_ops_that_disagree_on_how_far_a_tensor_reaches_are_refused() -> None:
    ops = routed_graph().ops
    for bounds, text in (
        ((), "not bounded for b"),
        ((Bound(tensor="a", dimension=0, limit=ROUTED),), "dimension 0 by routed for b"),
    ):
        graph = box_graph(ops[0], replace(ops[1], bounds=(*bounds, ops[1].bounds[0])), ops[2])
        plan = random_plan(graph, random.Random(0), num_ctas=2, position=WaitPosition.TASK)
        with pytest.raises(CoverageError, match=rf"a is bounded in dimension 1 by routed for a, but .*{text}"):
            prove(plan, graph)


def test_a_box_of_several_numbers_of_an_input_is_refused() -> None:
    fewer = RunTimeInput(name="routed", count=EXPERTS - 1, least=0, most=TOKENS)
    graph = routed_graph(limit=fewer)
    plan = random_plan(graph, random.Random(0), num_ctas=2, position=WaitPosition.TASK)
    with pytest.raises(
        CoverageError, match="boxes of a must have one index below 2, the size of routed, in dimension 0"
    ):
        prove(plan, graph)


@given(st.integers(0, TOKENS), st.sampled_from((1, 2, 3)), st.integers(0, 5), st.integers(1, 3), st.integers(1, 6))
def test_the_least_steps_of_a_task_are_those_that_read_something(
    least: int, tile: int, first: int, stride: int, count: int
) -> None:
    limit = RunTimeInput(name="routed", count=EXPERTS, least=least, most=TOKENS)
    space = total("t", "b", tile=tile, limit=limit)
    there = [step for step in range(first, first + stride * count, stride) if step * tile < least]
    found = least_steps(space, np.array([0]), np.array([[first, stride, count]]))
    assert found.tolist() == [len(there)]


def test_a_tile_of_which_nothing_may_be_left_has_no_step_though_its_inputs_are_all_there() -> None:
    limit = RunTimeInput(name="routed", count=EXPERTS, least=2, most=TOKENS)
    space = replace(product("b", "a", limit=limit), bounds=bounds_of("b", limit=limit))
    steps = np.tile([0, 1, space.num_steps], (space.num_tiles, 1))
    found = least_steps(space, np.arange(space.num_tiles), steps).reshape(space.grid)
    assert found[:, :, 0].tolist() == [[2, 0, 0]] * EXPERTS
