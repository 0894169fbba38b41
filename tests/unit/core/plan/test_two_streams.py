"""Two launches that share their signals: their results, what is proven about them, and the assumptions of the proof."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import H200, SMALL, chain_of_three, orderings, small_gpu, tiling, workloads
from tests.support.cases import ordering as plain_ordering
from tests.support.interpret import interpret, plain_product, random_tensors
from tests.support.oracle import faults, read
from tuner.core.model.simulate import simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import joined, make_paired_plans
from tuner.core.problem.resources import Resources
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import recheck, verify_paired_launches
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, LivenessError, PlanError, SafetyError
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32)))
QUEUES = plain_ordering(assignment=Assignment.STATIC)


def edited(plan: Plan, **arrays: object) -> Plan:
    """The plan with some of its arrays replaced."""
    return replace(plan, **arrays)  # type: ignore[arg-type]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[TileGraph, Ordering]:
    workload = draw(workloads().filter(lambda workload: len(workload.ops) == 2))
    tile = st.tuples(st.sampled_from((16, 32, 48)), st.sampled_from((16, 32)))
    assignment = draw(st.sampled_from((Assignment.STATIC, Assignment.SHARES)))
    chosen = replace(draw(orderings(workload)), assignment=assignment)
    return tile_graph(workload, tiling(draw(tile), draw(tile))), chosen


@pytest.mark.slow
@settings(max_examples=25)
@given(pairs(), st.integers(1, 5), st.integers(0, 2**32))
def test_both_compute_the_plain_product_side_by_side(case: tuple[TileGraph, Ordering], num_sms: int, seed: int) -> None:
    graph, chosen = case
    plans = make_paired_plans(graph, chosen, small_gpu(num_sms))
    one, other = verify_paired_launches(*plans, graph, SMALL, small_gpu(num_sms))
    both = joined(one.plan, other.plan)
    tensors = random_tensors(graph.workload, seed % 100)
    wanted = plain_product(graph.workload, tensors)
    outputs = interpret(both, graph, tensors | wanted, random.Random(seed), num_launches=2)
    for name, output in outputs.items():
        np.testing.assert_allclose(output, wanted[name], err_msg=name)
    assert [launch.graph.op_indices for launch in (one, other)] == [(0,), (1,)]
    assert (one.words == plans[0].words).all()
    assert (other.words == plans[1].words).all()


def ends_everywhere(first: Plan, second: Plan, num_slots: int, *, with_gate: bool) -> bool:
    """Walks every state of both launches on a GPU that holds `num_slots` CTAs; returns whether all tasks are always
    done at the end.

    A state is the CTAs that have started, those that have ended, and the tasks done. `with_gate`: no CTA of the second
    launch starts before all of the first have.
    """
    table = read(joined(first, second).words.tolist())
    firsts = frozenset(range(first.num_ctas))
    todo = [(frozenset[int](), frozenset[int]())]
    seen = set(todo)
    while todo:
        started, done = todo.pop()
        resident = [cta for cta in started if not set(table.queues[cta]) <= done]
        posts = [table.tasks[task].post for task in done]
        after = []
        if len(resident) < num_slots:
            startable = set(range(table.num_ctas)) - started
            after += [(started | {c}, done) for c in startable if not with_gate or c in firsts or firsts <= started]
        for cta in resident:
            task = next(task for task in table.queues[cta] if task not in done)
            waits = table.tasks[task].waits
            if all(posts.count(s) >= needed for begin, end, needed, *_ in waits for s in range(begin, end)):
                after.append((started, done | {task}))
        if not after and len(done) < len(table.tasks):
            return False
        new = [state for state in after if state not in seen]
        seen.update(new)
        todo += new
    return True


@pytest.mark.parametrize("granularity", [Granularity.ROW, Granularity.TILE, Granularity.BARRIER])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_they_end_however_few_ctas_are_resident_and_only_because_of_the_start_gate(
    num_slots: int, granularity: Granularity
) -> None:
    plans = make_paired_plans(PAIR, replace(QUEUES, granularity=granularity), small_gpu(3))
    assert [launch.num_ctas for launch in plans] == [3, 3]
    assert ends_everywhere(*plans, num_slots, with_gate=True)
    assert not ends_everywhere(*plans, num_slots, with_gate=False)


def test_the_grids_may_be_larger_than_what_is_resident() -> None:
    huge = Resources(num_threads=128, smem_bytes=200_000, registers_per_thread=64)
    gpu = small_gpu(2)
    plans = make_paired_plans(PAIR, replace(QUEUES, ctas_per_sm=2), gpu)
    assert plans[0].num_ctas == 4
    proven = verify_paired_launches(*plans, PAIR, huge, gpu)
    assert all(recheck(launch, huge).is_paired for launch in proven)


def test_the_oracle_finds_no_fault_in_both_together() -> None:
    for granularity in (Granularity.ROW, Granularity.TILE):
        plans = make_paired_plans(PAIR, replace(QUEUES, granularity=granularity), small_gpu(2))
        assert faults(joined(*plans).words.tolist(), PAIR) == set()


def test_each_broken_pair_is_refused_with_its_reason() -> None:
    first, second = make_paired_plans(PAIR, QUEUES, small_gpu(2))

    def refusal(one: Plan, other: Plan) -> PlanError:
        with pytest.raises(PlanError) as caught:
            verify_paired_launches(one, other, PAIR, SMALL, small_gpu(2))
        return caught.value

    verify_paired_launches(first, second, PAIR, SMALL, small_gpu(2))
    late, early, careless = (second.waits.copy() for _ in range(3))
    late[:, 2] += 1
    early[0, 2] -= 1
    assert isinstance(refusal(first, edited(second, waits=late)), LivenessError)
    assert isinstance(refusal(first, edited(second, waits=early)), SafetyError)
    careless[0, 3] += 1
    assert isinstance(refusal(first, edited(second, waits=careless)), LivenessError)
    assert isinstance(refusal(first, second.without_waits()), SafetyError)
    tasks = first.tasks.copy()
    tasks[-1, 3:5] = 0, 1
    assert "the first launch waits" in str(refusal(edited(first, tasks=tasks, waits=second.waits), second))
    tasks = second.tasks.copy()
    tasks[0, 5] = 0
    assert "the second launch posts" in str(refusal(first, edited(second, tasks=tasks)))
    assert "agree on their number" in str(refusal(first, edited(second, num_signals=second.num_signals + 1)))
    assert "need queues" in str(refusal(edited(first, assignment=1, queues=first.queues[:0]), second))
    short = edited(first, tasks=first.tasks[1:], queues=first.queues.clip(1) - 1)
    assert "no task computes it" in str(refusal(short, second))


def candidate(workload: Workload, chosen: Ordering) -> Candidate:
    tiles = tiling(*[(16, 32)] * len(workload.tile_ops))
    return Candidate(plan_kind=PlanKind.TWO_STREAMS, schedule=Schedule.of(tiling=tiles, ordering=chosen))


def test_a_candidate_is_two_launches_and_each_is_simulated_as_if_the_other_had_ended() -> None:
    plans = plans_for(PAIR.workload, H200, candidate(PAIR.workload, QUEUES))
    assert [plan.is_paired for plan in plans] == [True, True]
    assert [len(simulate(plan).rows) for plan in plans] == [4, 4]
    apart = independent_pair((32, 64, 32), (64, 32, 32))
    assert all(plan.plan.num_signals == 0 for plan in plans_for(apart, H200, candidate(apart, QUEUES)))


def test_tickets_and_longer_chains_are_illegal_with_a_sentence() -> None:
    with pytest.raises(IllegalSchedule, match="two_streams: drawn tickets do not tell how many CTAs have started"):
        plans_for(PAIR.workload, H200, candidate(PAIR.workload, plain_ordering()))
    wave = plain_ordering(assignment=Assignment.FIRST_WAVE)
    with pytest.raises(IllegalSchedule, match="two_streams: after the first wave, tasks are drawn from the other"):
        plans_for(PAIR.workload, H200, candidate(PAIR.workload, wave))
    chain = chain_of_three(64, (64, 64, 96, 64))
    with pytest.raises(IllegalSchedule, match="3 ops: two streams need exactly two"):
        plans_for(chain, H200, candidate(chain, plain_ordering(3, assignment=Assignment.STATIC)))


@pytest.mark.parametrize("shares", [((0, 1), (2,)), ((0,), (1, 2)), ((0,), (0,))])
def test_launches_of_other_than_two_ops_are_refused_as_plans_are(shares: tuple[tuple[int, ...], ...]) -> None:
    """Nothing is shared and all is covered: only the number of ops is wrong."""
    apart = tuple(GemmOp(name=name, m=32, n=64, k=32, source=f"x_{name}") for name in "abc")
    workload = Workload(kind=WorkloadKind.CHAIN, ops=apart)
    tiles = tiling((16, 32), (16, 32), (16, 32))
    ops = tuple(sorted({op for share in shares for op in share}))
    order = plain_ordering(3, assignment=Assignment.STATIC)
    one, other = (make_plan(tile_graph(workload, tiles, share), order, small_gpu(2)) for share in shares)
    with pytest.raises(PlanError, match=f"two streams run two ops, one each; this graph has {len(ops)}"):
        verify_paired_launches(one, other, tile_graph(workload, tiles, ops), SMALL, small_gpu(2))
