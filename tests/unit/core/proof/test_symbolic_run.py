from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.cases import ordering, small_gpu, tiling
from tests.support.mutants import edit_wait
from tests.support.oracle import Table, posts_of, read
from tests.unit.core.proof.test_verify import broken_plans
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.proof.symbolic_run import Protocol
from tuner.ops.gemm.pairs import ffn_pair


def random_run(
    table: Table, num_resident: int, frozen: int, rng: random.Random
) -> tuple[set[int], dict[int, int], dict[int, int]]:
    """One random interleaving, run until no step is possible: the tasks that start, the posts, and the k-step at which
    each stuck task waits."""
    queues = [list(queue) for queue in table.queues] if table.is_static else [list(range(len(table.tasks)))]
    held: list[int | None] = [None] * num_resident
    started, done = set[int](), set[int]()
    while True:
        steps, posts = [], posts_of(table, done)
        for cta, task in enumerate(held):
            if task is None:
                steps += [cta] if queues[cta if table.is_static else 0] else []
            elif task not in started:
                waits = table.tasks[task].waits
                if all(posts[s] >= needed for a, b, needed, *_ in waits for s in range(a, b)):
                    steps.append(cta)
            elif task != frozen:
                steps.append(cta)
        if not steps:
            stuck = {task: table.tasks[task].waits for task in held if task is not None and task not in started}
            lacking = {
                task: [step for a, b, needed, _, step in waits if any(posts[s] < needed for s in range(a, b))]
                for task, waits in stuck.items()
            }
            return started, posts, {task: steps[0] for task, steps in lacking.items()}
        cta = rng.choice(steps)
        task = held[cta]
        if task is None:
            held[cta] = queues[cta if table.is_static else 0].pop(0)
        elif task not in started:
            started.add(task)
        else:
            done.add(task)
            held[cta] = None


@pytest.mark.slow
@settings(max_examples=100)
@given(broken_plans(), st.data())
def test_one_run_stands_for_every_interleaving(case: tuple[TileGraph, Plan], data: st.DataObject) -> None:
    _, plan = case
    assume((plan.tasks[:, 5] == plan.tasks[plan.leader, 5]).all())  # coverage: the parts of a tile agree on their post
    num_ctas = data.draw(st.integers(1, plan.num_ctas)) if not plan.queues.size else plan.num_ctas
    frozen = data.draw(st.integers(-1, plan.num_tasks - 1))
    progress = Protocol(plan).run(num_ctas=num_ctas, frozen=frozen)
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    started, posts, stands = random_run(read(plan.words.tolist()), num_ctas, frozen, rng)
    assert {task for task, flag in enumerate(progress.started) if flag} == started
    assert progress.blocked == stands
    assert progress.posts == [posts.get(signal, 0) for signal in range(plan.num_signals)]


def test_what_cannot_start_is_named() -> None:
    graph = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
    plan = edit_wait(make_plan(graph, ordering(), small_gpu(2)), 1, 2, 3)
    progress = Protocol(plan).run(num_ctas=2)
    assert progress.blocked == {6: 0, 7: 0}
    assert progress.posts == [2, 2]
    assert list(progress.started) == [1] * 6 + [0] * 2
