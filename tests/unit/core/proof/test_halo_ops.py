"""Plans of toy ops between products: halos in three dimensions, and an op that reads itself; proven, run and broken."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import mutants, oracle
from tests.support.box_cells import tiles_read
from tests.support.box_graphs import BoxGraph, box_graph, box_graphs
from tests.support.box_launch import launch_of
from tests.support.cases import H200
from tests.support.halo_ops import (
    Shape,
    Tiles,
    blur,
    blurred,
    chained,
    inputs,
    product,
    prove,
    random_plan,
    scan,
    scanned,
    whole_answers,
)
from tests.support.proof import MUTATIONS, REASONS
from tests.support.task_machine import launch_plan
from tuner.core.model.rates import rates_of
from tuner.core.model.simulate import simulate_launch
from tuner.core.plan.graph.boxes import Box, BoxRead, Extent, TileSpace
from tuner.core.plan.graph.cover import Waits
from tuner.core.plan.table.header import TICKET
from tuner.core.plan.table.words import Plan
from tuner.core.proof.box_coverage import check_boxes
from tuner.core.schedule.ordering import Granularity, WaitPosition
from tuner.errors import CoverageError, LivenessError, PlanError, SafetyError

shapes = st.builds(
    Shape,
    h=st.integers(1, 7),
    w=st.integers(1, 6),
    channels=st.integers(1, 6),
    tile_h=st.integers(1, 3),
    tile_w=st.integers(1, 3),
    tile_c=st.integers(2, 4),
    step_c=st.integers(1, 3),
    adds=st.booleans(),
)
#: At most nine tasks each, so that every state can be visited.
SMALL = (
    blurred(Shape()),
    blurred(Shape(tile_h=4, blur_parts=2)),
    blurred(Shape(h=2, tile_h=1, tile_w=4, channels=6, step_c=2, tile_c=6, blur_parts=3, adds=True)),
    blurred(Shape(w=6, h=2, adds=True)),
    scanned(Shape(h=6)),
    scanned(Shape(h=2, tile_c=2)),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(shapes, st.sampled_from((blurred, scanned, chained)), st.integers(1, 3), st.integers(0, 2**32))
def test_every_plan_of_them_is_proven_and_computes_what_the_ops_are(
    shape: Shape, launch: Callable[[Shape], BoxGraph], parts: int, seed: int
) -> None:
    shape = replace(shape, blur_parts=min(parts, -(-shape.channels // shape.step_c)))
    graph, rng = launch(shape), random.Random(seed)
    plan = random_plan(graph, rng, num_ctas=rng.randint(1, 5))
    prove(plan, graph)
    tensors = inputs(graph, shape, seed)
    arithmetic = {op: Tiles(space, shape) for op, space in graph.spaces.items()}
    made = launch_plan(plan, graph, arithmetic, tensors, rng, num_launches=2)
    for name, wanted in whole_answers(graph, shape, tensors).items():
        np.testing.assert_allclose(made[name], wanted, rtol=1e-9, atol=1e-9)


def test_waits_for_two_producers_stand_in_the_order_of_the_steps() -> None:
    shape = Shape(channels=8, tile_c=2, step_c=2, tile_h=4)
    last = product("m", "a", shape)
    other = BoxRead(box=Box(tensor="b", extents=last.reads[0].box.extents))
    graph = box_graph(
        product("a", "x", shape), product("b", "x", shape), replace(last, reads=(last.reads[0], other, last.reads[1]))
    )
    rng, position = random.Random(0), WaitPosition.SLICE
    plan = random_plan(graph, rng, num_ctas=3, granularity=Granularity.TILE, position=position)
    prove(plan, graph)
    (begin, end), *others = {tuple(task[3:5]) for task in plan.tasks.tolist() if task[0] == 2}
    assert not others
    assert plan.waits[begin:end, 4].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def is_sound(graph: BoxGraph) -> bool:
    """Whether everything that is read is written, by ops other than the reader's."""
    try:
        check_boxes(graph)
    except CoverageError:
        return False
    return bool(graph.edges) and not any(edge.producer == edge.consumer for edge in graph.edges)


@pytest.mark.slow
@settings(max_examples=25)
@given(box_graphs().filter(is_sound), st.sampled_from(Granularity), st.integers(0, 2**32))
def test_every_plan_of_random_boxes_is_proven(graph: BoxGraph, granularity: Granularity, seed: int) -> None:
    """Some boxes have two producers, whose waits are before different steps."""
    rng = random.Random(seed)
    prove(random_plan(graph, rng, num_ctas=rng.randint(1, 5), granularity=granularity), graph)


@settings(max_examples=15)
@given(shapes, st.sampled_from((blurred, scanned, chained)), st.integers(0, 2**32))
def test_a_simulated_launch_of_them_keeps_every_edge(
    shape: Shape, launch: Callable[[Shape], BoxGraph], seed: int
) -> None:
    shape = replace(shape, blur_parts=min(2, -(-shape.channels // shape.step_c)))
    graph, rng = launch(shape), random.Random(seed)
    plan = prove(random_plan(graph, rng, num_ctas=rng.randint(1, 5), position=WaitPosition.TASK), graph)
    graph = graph.with_parts(strided=plan.strided_parts)
    timeline = simulate_launch(plan, graph, launch_of(graph, H200), H200, rates_of(H200))
    assert sorted(row[1] for row in timeline.rows) == list(range(plan.num_tasks))
    end_us: dict[tuple[int, int, int], float] = {}
    for _, task, *_, end in timeline.rows:
        op, row, col = plan.tasks[task, :3].tolist()
        end_us[op, row, col] = max(end, end_us.get((op, row, col), 0.0))
    for _, task, _, wait, *_ in timeline.rows:
        op, row, col = plan.tasks[task, :3].tolist()
        part, num_parts = plan.tasks[task, 6:8].tolist()
        read = tiles_read(graph, (op, row, col), part, num_parts)
        assert all(end_us[other] <= wait for other in read)


def refusal(plan: Plan, graph: BoxGraph) -> str | None:
    try:
        prove(plan, graph)
    except PlanError as error:
        return REASONS[type(error)] if error.witness else "a refusal without a witness"
    return None


def judged(seed: int, count: int) -> Iterator[tuple[frozenset[str], str | None]]:
    """The verdicts of the exhaustive walk and of the proof on plans and their mutants."""
    rng = random.Random(seed)
    mutations = [name for name in MUTATIONS if name not in ("grid too large", "read in band or not")]
    for _ in range(count):
        graph = rng.choice(SMALL)
        plan = random_plan(graph, rng, num_ctas=rng.randint(1, 3))
        if rng.random() < 0.9:
            plan = MUTATIONS[rng.choice(mutations)](plan, rng)
            plan = mutants.with_true_steps(plan) if rng.random() < 0.5 else plan
        yield frozenset(oracle.faults(plan.words.tolist(), graph)), refusal(plan, graph)


# In CI, test_second_oracle.py compares the proof with a walk.
@pytest.mark.soak
def test_the_proof_agrees_with_a_walk_over_every_state_on_mutants_of_them() -> None:
    seen: Counter[str] = Counter()
    for faults, refused in judged(seed=4, count=250):
        seen[refused or "accepted"] += 1
        assert refused in faults if refused else not faults
    assert min(seen[verdict] for verdict in ("accepted", "words", "coverage", "safety", "liveness")) > 10


def waiting(plan: Plan) -> list[int]:
    """Tasks with waits."""
    tasks: list[int] = np.flatnonzero(plan.tasks[:, 4] > plan.tasks[:, 3]).tolist()
    return tasks


def test_a_task_without_its_waits_is_refused_with_its_tile_and_the_box_that_it_reads() -> None:
    graph = chained(Shape(tile_c=2))
    plan = random_plan(graph, random.Random(0), num_ctas=3, granularity=Granularity.TILE)
    assert {int(plan.tasks[task, 0]) for task in waiting(plan)} == {1, 2, 3, 4}
    for task in waiting(plan):
        op, row, col = plan.tasks[task, :3].tolist()
        space = graph.spaces[op]
        who = rf"task {task} \({space.name} tile {row},{col}\)"
        tensors = "|".join({read.box.tensor for read in space.reads} - {f"{space.name}.weight"})
        with pytest.raises(SafetyError, match=rf"{who} can .* when it reads ({tensors})\[\d+:\d+, \d+:\d+, \d+:\d+\]"):
            prove(mutants.edit(plan, task, 4, int(plan.tasks[task, 3])), graph)


def test_a_plan_for_a_narrower_halo_is_refused_for_a_wider_one() -> None:
    shape = Shape(h=6, tile_w=4)
    ops = (product("a", "x", shape), blur("b", "a", shape, halo=0), product("c", "b", shape))
    plan = random_plan(box_graph(*ops), random.Random(1), num_ctas=2, granularity=Granularity.ROW)
    prove(plan, box_graph(*ops))
    for halo, box in ((1, "0:3"), (2, "0:4")):
        wider = box_graph(ops[0], blur("b", "a", shape, halo=halo), ops[2])
        with pytest.raises(SafetyError, match=rf"\(b tile 0,0\) can load its k-step 0 before .* a\[{box}, 0:4, 0:2\]"):
            prove(plan, wider)


@pytest.mark.parametrize(("side", "problem"), [("begin", "written twice"), ("end", "reads what no task writes")])
def test_a_box_that_is_written_off_by_one_is_refused_with_it(side: str, problem: str) -> None:
    shape = Shape()
    ops = blurred(shape).ops
    rows, *others = ops[0].writes[0].extents
    edges = {"begin": rows.begin.copy(), "end": rows.end.copy()}
    edges[side][int(side == "begin")] -= 1
    moved = Box(tensor="a", extents=(Extent(axes=rows.axes, **edges), *others))
    graph = box_graph(replace(ops[0], writes=(moved,)), *ops[1:])
    plan = random_plan(graph, random.Random(2), num_ctas=2, granularity=Granularity.TILE)
    with pytest.raises(CoverageError, match=rf"{problem}: .* tile \d,\d's box a\["):
        prove(plan, graph)


def test_a_read_that_is_off_by_one_needs_other_waits() -> None:
    """One row further down, within the tensor: the plan's waits do not cover the read."""
    ops = scanned(Shape(h=6)).ops
    rows = ops[1].reads[0].box.extents[0]
    further = Extent(axes=rows.axes, begin=rows.begin.copy(), end=np.minimum(rows.end + 1, 6))
    box = Box(tensor="a", extents=(further, *ops[1].reads[0].box.extents[1:]))
    shifted = box_graph(ops[0], replace(ops[1], reads=(BoxRead(box=box), *ops[1].reads[1:])), ops[2])
    plan = random_plan(box_graph(*ops), random.Random(0), num_ctas=1, granularity=Granularity.TILE)
    with pytest.raises(SafetyError, match=r"\(s tile 0,0\) can load .* before task \d \(a tile 1,0\) .* a\[0:3, "):
        prove(plan, shifted)


def test_a_scan_waits_for_its_own_earlier_tile_and_is_refused_in_another_order() -> None:
    graph = scanned(Shape(h=6))
    plan = plan_of_tickets(graph, Granularity.TILE)
    first, second, third = np.flatnonzero(plan.tasks[:, 0] == 1).tolist()
    mine = {task: int(plan.tasks[task, 5]) for task in (first, second, third)}
    waited = {
        s for begin, end, *_ in plan.waits[plan.tasks[third, 3] : plan.tasks[third, 4]] for s in range(begin, end)
    }
    assert mine[second] in waited
    assert not {mine[first], mine[third]} & waited
    tasks = plan.tasks.copy()
    tasks[[second, third]] = tasks[[third, second]]
    with pytest.raises(LivenessError, match=r"\(s tile 2,0\) waits for signal \d \(0 of 1 posts\), which .*s tile 1,0"):
        prove(replace(plan, tasks=tasks), graph)


def plan_of_tickets(graph: BoxGraph, granularity: Granularity) -> Plan:
    plans = (random_plan(graph, random.Random(seed), num_ctas=2, granularity=granularity) for seed in range(20))
    return next(plan for plan in plans if plan.assignment == TICKET)


def test_a_scan_whose_tiles_share_a_signal_waits_for_itself_and_is_refused() -> None:
    graph = scanned(Shape(h=6))
    with pytest.raises(LivenessError, match="the plan deadlocks"):
        prove(plan_of_tickets(graph, Granularity.BARRIER), graph)


def test_late_waits_of_a_blur_are_left_out_only_where_its_steps_cover_them() -> None:
    """What it adds is within its halo, so a whole tile has waited for it, but a part may not have."""
    graph = blurred(Shape(adds=True, tile_c=2, blur_parts=2))
    (late,) = graph.late_edges
    assert graph.waits_for(late) is Waits.PARTS
    whole = blurred(Shape(adds=True, tile_c=2))
    plan = random_plan(whole, random.Random(0), num_ctas=2, position=WaitPosition.SLICE)
    assert not (plan.waits[:, 4] > 3).any()
    shape = Shape(h=6)
    around = blur("b", "s", shape)  # adds what is above its halo of s, which is further down
    above = BoxRead(box=Box(tensor="a", extents=(*around.reads[0].box.extents[:2], WHOLE)), is_late=True)
    graph = box_graph(
        product("a", "x", shape), scan("s", "a", shape), replace(around, reads=(*around.reads[:1], above))
    )
    assert [graph.waits_for(edge) for edge in graph.late_edges] == [Waits.NEVER]
    beyond = replace(above, box=Box(tensor="a", extents=(ALL_ROWS, WHOLE, WHOLE)))
    graph = box_graph(*graph.ops[:2], replace(around, reads=(*around.reads[:1], beyond)))
    assert [graph.waits_for(edge) for edge in graph.late_edges] == [Waits.ALWAYS]


@pytest.mark.parametrize(("parts", "waits"), [(1, Waits.NEVER), (2, Waits.ALWAYS)])
def test_a_part_waits_late_for_what_its_own_steps_do_not_stand_for(parts: int, waits: Waits) -> None:
    """Each tile of a scan implies only its own channels of its inputs. A whole tile reads all of them."""
    shape = Shape(tile_c=2)
    last = replace(product("m", "s", shape), num_parts=parts)
    box = Box(tensor="a", extents=(last.writes[0].extents[0], WHOLE, WHOLE))
    reads = (last.reads[0], BoxRead(box=box, is_late=True), last.reads[1])
    graph = box_graph(product("a", "x", shape), scan("s", "a", shape), replace(last, reads=reads))
    assert [graph.waits_for(edge) for edge in graph.late_edges] == [waits]
    prove(random_plan(graph, random.Random(0), num_ctas=2, granularity=Granularity.TILE), graph)


ALL_ROWS = Extent(axes=(), begin=np.array(0), end=np.array(6))
WHOLE = Extent(axes=(), begin=np.array(0), end=np.array(4))


def test_coordinates_of_three_axes_are_two_words_and_back() -> None:
    space: TileSpace = blur("b", "a", Shape(h=5, w=7, channels=6))
    rows, cols = space.word_grid
    assert (space.grid, rows, cols) == ((3, 4, 2), 12, 2)
    tiles = [space.coordinates(row, col) for row in range(rows) for col in range(cols)]
    assert tiles == list(np.ndindex(3, 4, 2))
