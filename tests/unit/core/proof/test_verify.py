from __future__ import annotations

import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import mutants, oracle
from tests.support.cases import SMALL, chain_of_three, fork, ordered_graphs, ordering, small_gpu, tiling
from tests.support.interpret import interpret, plain_product, random_tensors
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.resources import Resources, occupancy
from tuner.core.proof.verify import VerifiedPlan, recheck, verify
from tuner.core.schedule.ordering import ASSIGNMENTS, Assignment, Granularity, Ordering, WaitPosition
from tuner.errors import CoverageError, LivenessError, PlanError, ResourceError, SafetyError, WordError
from tuner.ops.gemm.pairs import ffn_pair

GPU = small_gpu(3)
REFUSALS = {WordError: "words", CoverageError: "coverage", SafetyError: "safety", LivenessError: "liveness"}
#: Two tile rows, two tile columns each: tasks 0..3 are up's, 4..7 down's, in ticket order.
PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))


def plan_of(graph: TileGraph = PAIR, *, bands: int = 0, gpu: Gpu = GPU, **changes: object) -> Plan:
    return make_plan(graph, ordering(len(graph.workload.tile_ops), bands=bands, **changes), gpu)


@given(ordered_graphs())
def test_every_plan_that_is_made_is_proven(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, gpu = case
    verified = verify(make_plan(graph, order, gpu), graph, SMALL, gpu)
    assert (verified.words == verified.plan.words).all()


TINY = st.sampled_from(
    (
        PAIR,
        tile_graph(ffn_pair(m=48, d_in=32, d_hidden=32, d_out=32), tiling((16, 32), (32, 32))),
        tile_graph(ffn_pair(m=48, d_in=32, d_hidden=64, d_out=32), tiling((32, 32), (16, 32))),
        tile_graph(chain_of_three(32, (32, 32, 64, 32)), tiling((16, 32), (16, 32), (32, 32))),
        tile_graph(fork(32, (32, 32, 32, 32)), tiling((16, 32), (32, 32), (16, 32))),
        tile_graph(ffn_pair(m=16, d_in=32, d_hidden=100, d_out=32), tiling((16, 32), (16, 32), split=(1, 3))),
        tile_graph(ffn_pair(m=32, d_in=50, d_hidden=32, d_out=32), tiling((16, 32), (32, 32), split=(2, 1))),
        tile_graph(ffn_pair(m=16, d_in=64, d_hidden=64, d_out=32), tiling((16, 32), (16, 32), split=(2, 2))),
    )
)


@st.composite
def broken_plans(draw: st.DrawFn) -> tuple[TileGraph, Plan]:
    graph = draw(TINY)
    order = ordering(
        len(graph.workload.tile_ops),
        bands=draw(st.integers(0, 2)),
        granularity=draw(st.sampled_from(Granularity)),
        assignment=draw(st.sampled_from(ASSIGNMENTS)),
        wait_position=draw(st.sampled_from(WaitPosition)),
    )
    return graph, draw(mutants.mutants(make_plan(graph, order, small_gpu(draw(st.integers(1, 3))))))


def refusal(plan: Plan, graph: TileGraph) -> PlanError | None:
    try:
        verify(plan, graph, SMALL, small_gpu(4))
    except PlanError as error:
        return error
    return None


@pytest.mark.slow
@settings(max_examples=80)  # the soak programs of proofs walk a hundred thousand plans
@given(broken_plans())
def test_the_verdict_is_that_of_a_walk_over_every_state(case: tuple[TileGraph, Plan]) -> None:
    graph, plan = case
    faults = oracle.faults(plan.words.tolist(), graph)
    error = refusal(plan, graph)
    if error is None:
        assert not faults
    else:
        assert REFUSALS[type(error)] in faults, error
        assert error.witness


# In CI, verify agrees with the oracle on plans and their mutants.
@pytest.mark.soak
@settings(max_examples=40)
@given(broken_plans(), st.integers(0, 9))
def test_an_accepted_mutant_still_computes_the_product(case: tuple[TileGraph, Plan], seed: int) -> None:
    graph, plan = case
    assume(refusal(plan, graph) is None)
    tensors = random_tensors(graph.workload, 0)
    outputs = interpret(plan, graph, tensors, random.Random(seed), num_launches=2)
    for name, wanted in plain_product(graph.workload, tensors).items():
        np.testing.assert_allclose(outputs[name], wanted)


def refused(plan: Plan, error: type[PlanError], *witness: str, graph: TileGraph = PAIR) -> None:
    with pytest.raises(error) as caught:
        verify(plan, graph, SMALL, GPU)
    for words in witness:
        assert words in caught.value.witness


def test_a_dropped_task_is_named_by_its_tile() -> None:
    refused(mutants.drop(plan_of(), 5), CoverageError, "down tile 0,1", "no task computes it")


def test_a_doubled_task_is_named_with_its_double() -> None:
    refused(mutants.double(plan_of(), 2), CoverageError, "up tile 1,0", "tasks 2 and 8 compute it")


def test_a_tile_outside_the_grid_and_an_op_of_another_launch_are_named() -> None:
    refused(mutants.edit(plan_of(), 3, 1, 9), CoverageError, "task 3 (up tile 9,1)", "2 x 2")
    refused(mutants.edit(plan_of(), 3, 2, 2), CoverageError, "task 3 (up tile 1,2)", "2 x 2")
    refused(mutants.edit(plan_of(), 3, 2, -1), WordError, "tile_n of task 3 is -1")
    refused(mutants.edit(plan_of(), 3, 0, 7), CoverageError, "task 3 names op 7, not 0 (up), 1 (down)")


def test_a_removed_wait_is_named_with_reader_writer_and_signal() -> None:
    mutant = mutants.edit(plan_of(), 4, 4, 0)
    refused(mutant, SafetyError, "task 4 (down tile 0,0)", "(up tile 0,", "posts to signal 0", "(none)")


def test_a_removed_wait_is_a_race_even_where_one_cta_runs_everything() -> None:
    """It may load the operands of its next task before it has stored the current one."""
    for assignment in ASSIGNMENTS:
        plan = plan_of(gpu=small_gpu(1), assignment=assignment)
        tasks = plan.tasks.copy()
        tasks[:, 4] = tasks[:, 3]
        refused(replace(plan, tasks=tasks), SafetyError, "task 4 (down tile 0,0)", "(up tile 0,0)", "(none)")


def test_a_long_queue_without_waits_is_judged_at_once() -> None:
    graph = tile_graph(ffn_pair(m=512, d_in=32, d_hidden=4096, d_out=512), tiling((16, 32), (16, 32)))
    for assignment in ASSIGNMENTS:
        plan = plan_of(graph, gpu=small_gpu(1), assignment=assignment)
        tasks = plan.tasks.copy()
        tasks[:, 4] = tasks[:, 3]
        refused(replace(plan, tasks=tasks), SafetyError, "(none)", graph=graph)


def test_a_threshold_below_all_posts_is_a_race() -> None:
    refused(mutants.edit_wait(plan_of(), 0, 2, 1), SafetyError, "(signals 0..0 >= 1)", "posts to signal 0")


def test_a_threshold_above_all_posts_is_never_reached() -> None:
    refused(mutants.edit_wait(plan_of(), 1, 2, 3), LivenessError, "signal 1", "gets 2 posts", "expects 3")


def test_a_wrong_step_per_launch_breaks_the_next_launch() -> None:
    refused(mutants.edit_wait(plan_of(), 0, 3, 1), SafetyError, "gets 2 posts", "counts 1")
    refused(mutants.edit_wait(plan_of(), 0, 3, 3), LivenessError, "gets 2 posts", "counts on 3")


def test_a_ticket_before_one_that_it_waits_for_is_a_deadlock() -> None:
    witness = "task 0 (down tile 0,0) waits for signal 0 (0 of 2 posts), which task 1 (up tile 0,0) would post"
    refused(mutants.move(plan_of(), 4, 0, 0), LivenessError, witness, "a later ticket than task 0")


def test_a_cycle_through_static_queues_is_spelled_out() -> None:
    """Queue 0: down 0,0 before up 1,0; queue 1: down 1,0 before up 0,0: each waits for a task that comes after the
    other."""
    plan = plan_of(gpu=small_gpu(2), assignment=Assignment.STATIC)
    by_tile = {tuple(task[:3].tolist()): task for task in plan.tasks}
    queues = [
        [by_tile[0, 0, 1], by_tile[1, 0, 0], by_tile[0, 1, 0], by_tile[1, 0, 1]],
        [by_tile[0, 1, 1], by_tile[1, 1, 0], by_tile[0, 0, 0], by_tile[1, 1, 1]],
    ]
    mutant = mutants.rebuilt(plan, queues)
    refused(
        mutant,
        LivenessError,
        "task 1 (down tile 0,0) waits for signal 0 (1 of 2 posts), which task 6 (up tile 0,0) would post",
        "which comes after task 5 (down tile 1,0) in queue 1; task 5 (down tile 1,0) waits for signal 1",
        "and so back to task",
    )


def test_a_static_order_that_only_a_run_can_judge_is_accepted() -> None:
    """Queue 1 has its consumer rank before the producer that queue 0 waits for: late, but free of deadlocks."""
    plan = plan_of(gpu=small_gpu(2), assignment=Assignment.STATIC)
    by_tile = {tuple(task[:3].tolist()): task for task in plan.tasks}
    queues = [
        [by_tile[0, 1, 0], by_tile[0, 1, 1], by_tile[0, 0, 0], by_tile[0, 0, 1], by_tile[1, 1, 0]],
        [by_tile[1, 0, 0], by_tile[1, 0, 1], by_tile[1, 1, 1]],
    ]
    verify(mutants.rebuilt(plan, queues), PAIR, SMALL, GPU)


def test_a_ticket_that_another_cta_drew_ahead_lets_a_later_one_pass() -> None:
    """One CTA computes up 0,1 and has drawn down 0,0, which waits for it; the other one continues with down 0,1."""
    graph = tile_graph(ffn_pair(m=16, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
    for num_ctas in (1, 2, 3):
        racy = mutants.edit(plan_of(graph, gpu=small_gpu(num_ctas)), 3, 4, 0)
        with pytest.raises(
            SafetyError, match=r"task 3 \(down tile 0,1\) can load its k-step 0 before task 0 \(up tile 0,0\)"
        ):
            verify(racy, graph, SMALL, GPU)


def test_a_tall_consumer_tile_that_waits_for_one_band_only_is_refused() -> None:
    """A fault from public code: tile heights differ, but the consumer waits as if they were equal."""
    graph = tile_graph(ffn_pair(m=64, d_in=32, d_hidden=64, d_out=32), tiling((16, 32), (32, 32)))
    for granularity, signals in ((Granularity.ROW, 1), (Granularity.TILE, 2)):
        plan = plan_of(graph, granularity=granularity)
        verify(plan, graph, SMALL, GPU)
        waits = plan.waits.copy()
        waits[:, 1] = waits[:, 0] + signals  # the first of the two producer rows
        refused(replace(plan, waits=waits), SafetyError, "(down tile ", "(up tile ", graph=graph)


def test_static_queues_need_every_cta_resident() -> None:
    plan = plan_of(assignment=Assignment.STATIC, ctas_per_sm=2)
    fat = Resources(num_threads=128, smem_bytes=150_000, registers_per_thread=64)
    assert occupancy(fat, GPU) == 1
    verified = verify(plan, PAIR, SMALL, GPU)
    for refuse in (lambda: verify(plan, PAIR, fat, GPU), lambda: recheck(verified, fat)):
        with pytest.raises(ResourceError, match=r"6 CTAs, but 3 SMs hold 3.*shared memory of H200 allow 1"):
            refuse()
    verify(plan_of(ctas_per_sm=2), PAIR, fat, GPU)  # tickets need no co-residency


@pytest.mark.parametrize(
    ("resources", "what"),
    [
        (Resources(num_threads=128, smem_bytes=232_449, registers_per_thread=64), "limits of one CTA"),
        (Resources(num_threads=2048, smem_bytes=0, registers_per_thread=32), "limits of one CTA"),
        (Resources(num_threads=128, smem_bytes=0, registers_per_thread=256), "limits of one CTA"),
        (Resources(num_threads=288, smem_bytes=0, registers_per_thread=249), "registers"),
    ],
)
def test_a_cta_that_does_not_fit_is_refused(resources: Resources, what: str) -> None:
    with pytest.raises(ResourceError, match=what):
        verify(plan_of(), PAIR, resources, GPU)


def test_registers_are_allocated_in_units_of_256_per_warp() -> None:
    assert Resources(num_threads=128, smem_bytes=0, registers_per_thread=65).registers_per_cta == 4 * 9 * 256
    assert occupancy(Resources(num_threads=256, smem_bytes=0, registers_per_thread=128), GPU) == 2
    assert occupancy(Resources(num_threads=256, smem_bytes=0, registers_per_thread=129), GPU) == 1


def test_only_verify_makes_a_verified_plan() -> None:
    verified = verify(plan_of(), PAIR, SMALL, GPU)
    with pytest.raises(TypeError, match="call verify"):
        VerifiedPlan(plan=verified.plan, graph=PAIR, resources=SMALL, gpu=GPU, token=object())
    with pytest.raises((TypeError, ValueError), match="token"):
        replace(verified, resources=SMALL)  # type: ignore[call-arg]
    assert (pickle.loads(pickle.dumps(verified)).words == verified.words).all()


def test_what_is_judged_are_the_words() -> None:
    plan = plan_of()
    plan.words  # noqa: B018 - made, and from now on what counts
    plan.tasks[0, 1] = 9
    assert verify(plan, PAIR, SMALL, GPU).plan.tasks[0, 1] == 0
