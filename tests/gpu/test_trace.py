"""Stamps on a real GPU: one per task, in order on each CTA, ready after its producers, with durations near the timed
ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.attentions import alone, attention
from tests.support.conformance.attention import BEHIND
from tests.support.conformance.schedules import in_turns
from tests.support.conformance.turned import IN_LAYERS, LAYER
from tests.support.on_card import fused, problem, schedule
from tuner.core.insight.traces.tracing import op_names
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.problem.workload import Activation, Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Problem, evaluate
from tuner.core.trial.outcome import Measured
from tuner.core.trial.reports.inspection import TaskSpan, Trace
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.rules import attention_engine_problem
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor

pytest.importorskip("cupy")

WORKLOAD = ffn_pair(m=512, d_in=4096, d_hidden=8192, d_out=4096, activation=Activation.SILU)
#: Maximum difference between the times of two SMs: CTAs see the timer tick at different moments, and clocks change
#: during a launch.
TOLERANCE_NS = 500
#: Maximum duration of a post, which waits for the tile's stores. The stamp of a stored task comes after it, so a
#: consumer may be ready before that stamp, but never before the tile was computed.
POST_NS = 2000


@pytest.fixture(scope="module")
def supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    supervisor = GpuSupervisor(card, build_cache)
    yield supervisor
    supervisor.close()


def candidate(kind: PlanKind, assignment: Assignment = Assignment.TICKET) -> Candidate:
    chosen = schedule(((128, 128, 64), (128, 128, 64)), stages=4, warps=8, assignment=assignment)
    return Candidate(plan_kind=kind, schedule=chosen)


def traced(supervisor: GpuSupervisor, asked: Problem, chosen: Candidate) -> tuple[Trace, tuple[VerifiedPlan, ...]]:
    trace = supervisor.trace(asked, chosen)
    assert not trace.reason
    assert not trace.simulated
    return trace, plans_for(asked.workload, supervisor.target.gpu, chosen)


KINDS = [
    (PlanKind.FUSED, Assignment.TICKET),
    (PlanKind.FUSED, Assignment.STATIC),
    (PlanKind.TWO_LAUNCHES, Assignment.TICKET),
    (PlanKind.TWO_LAUNCHES_PDL, Assignment.STATIC),
]


@pytest.mark.parametrize(("kind", "assignment"), KINDS, ids=str)
def test_every_task_is_there_once_and_its_times_are_in_order(
    supervisor: GpuSupervisor, kind: PlanKind, assignment: Assignment
) -> None:
    trace, plans = traced(supervisor, problem(WORKLOAD), candidate(kind, assignment))
    assert [(s.launch, s.task) for s in trace.spans] == [
        (launch, task) for launch, plan in enumerate(plans) for task in range(plan.plan.num_tasks)
    ]
    for s in trace.spans:
        assert 0 <= s.taken_ns <= s.ready_ns < s.loaded_ns < s.computed_ns < s.stored_ns <= trace.makespan_ns
        assert [s.op, s.tile_m, s.tile_n] == plans[s.launch].plan.tasks[s.task, :3].tolist()
    check_ctas(trace, plans)
    for op in trace.shares:
        assert op.wait + op.load + op.compute + op.store == pytest.approx(1)
        assert op.compute > 0.1
    assert 0 <= trace.tail < 1


def check_ctas(trace: Trace, plans: tuple[VerifiedPlan, ...]) -> None:
    """Checks that a CTA stays on its SM and runs one task at a time; a static CTA runs those of its queue."""
    for launch, plan in enumerate(plans):
        spans = [s for s in trace.spans if s.launch == launch]
        for cta in range(plan.plan.num_ctas):
            own = sorted((s for s in spans if s.cta == cta), key=lambda s: s.taken_ns)
            assert len({s.sm for s in own}) <= 1
            assert [s.task for s in own] == sorted(s.task for s in own)
            assert all(before.stored_ns <= after.taken_ns for before, after in pairwise(own))
            if plan.plan.queues.size:
                assert [s.task for s in own] == list(range(plan.plan.queues[cta], plan.plan.queues[cta + 1]))


@pytest.mark.parametrize("assignment", [Assignment.TICKET, Assignment.STATIC])
def test_no_task_is_ready_before_its_producers_are_stored(supervisor: GpuSupervisor, assignment: Assignment) -> None:
    trace, (plan,) = traced(supervisor, problem(WORKLOAD), candidate(PlanKind.FUSED, assignment))
    for event, tolerance_ns in (("computed_ns", TOLERANCE_NS), ("stored_ns", TOLERANCE_NS + POST_NS)):
        ended = {(s.op, s.tile_m, s.tile_n): getattr(s, event) for s in trace.spans}
        early = [last_producer_ns(plan.graph, s, ended) - s.ready_ns for s in trace.spans if s.op == 1]
        assert max(early) < tolerance_ns, event


def last_producer_ns(graph: TileGraph, span: TaskSpan, ended: dict[tuple[int, int, int], int]) -> int:
    (edge,) = (edge for edge in graph.streams if edge.consumer == span.op)
    first, last = edge.rows
    rows, columns = range(first[span.tile_m], last[span.tile_m]), range(graph.grids[edge.producer][1])
    return max(ended[edge.producer, row, column] for row in rows for column in columns)


def test_the_second_launch_begins_after_the_first_one_ended(supervisor: GpuSupervisor) -> None:
    trace, _ = traced(supervisor, problem(WORKLOAD), candidate(PlanKind.TWO_LAUNCHES))
    ends = [s.stored_ns for s in trace.spans if s.launch == 0]
    begins = [s.taken_ns for s in trace.spans if s.launch == 1]
    assert min(begins) > max(ends) - TOLERANCE_NS
    assert min(begins) - max(ends) < 50_000, "the host delayed the launches"


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.TWO_LAUNCHES])
def test_a_traced_run_takes_about_as_long_as_a_timed_one_and_uses_every_sm(
    supervisor: GpuSupervisor, kind: PlanKind
) -> None:
    asked = problem(WORKLOAD)
    timed = evaluate(supervisor, asked, candidate(kind))
    assert isinstance(timed, Measured), timed
    trace, _ = traced(supervisor, asked, candidate(kind))
    assert 0.5 * timed.time_us < trace.makespan_ns / 1e3 < 2 * timed.time_us
    assert len({s.sm for s in trace.spans}) == supervisor.target.gpu.num_sms


def test_a_ragged_one_row_problem_has_its_trace_too(supervisor: GpuSupervisor) -> None:
    asked = problem(ffn_pair(m=1, d_in=100, d_hidden=203, d_out=77))
    trace, (plan,) = traced(supervisor, asked, fused(schedule(((16, 64, 64), (16, 64, 64)))))
    assert len(trace.spans) == plan.plan.num_tasks
    assert trace.makespan_ns > 0


def test_what_cannot_be_traced_has_a_reason_and_the_next_one_works(supervisor: GpuSupervisor) -> None:
    asked = problem(WORKLOAD)
    assert "library" in supervisor.trace(asked, Candidate(plan_kind=PlanKind.LIBRARY)).reason
    assert "warps" in supervisor.trace(asked, fused(schedule(((128, 128, 64), (128, 128, 64)), warps=3))).reason
    traced(supervisor, asked, candidate(PlanKind.FUSED))


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
def test_teams_that_take_turns_store_one_tile_while_the_next_one_is_multiplied(
    supervisor: GpuSupervisor, assignment: Assignment
) -> None:
    if supervisor.target.gpu.compute_capability != (9, 0):
        pytest.skip(f"{supervisor.target.gpu.name} has no wgmma")
    pair = ffn_pair(m=1024, d_in=4096, d_hidden=8192, d_out=4096, activation=Activation.SILU)
    tiles = ((128, 128, 64), (128, 128, 64))
    chosen = in_turns(tiles, stages=6, input_stages=6, assignment=assignment, reserved_sms=0)
    trace, (plan,) = traced(supervisor, problem(pair), fused(chosen))
    overlaps = []
    for cta in range(plan.plan.num_ctas):
        own = sorted((s for s in trace.spans if s.cta == cta), key=lambda s: s.taken_ns)
        assert [s.task for s in own] == sorted(s.task for s in own)
        assert all(before.computed_ns < after.computed_ns for before, after in pairwise(own))
        assert all(first.stored_ns < later.loaded_ns for first, later in zip(own, own[2:], strict=False))
        overlaps += [after.loaded_ns < before.stored_ns for before, after in pairwise(own)]
    assert sum(overlaps) > len(overlaps) / 2
    stored = {(s.op, s.tile_m, s.tile_n): s.stored_ns for s in trace.spans}
    early = [last_producer_ns(plan.graph, s, stored) - s.ready_ns for s in trace.spans if s.op == 1]
    assert max(early) < TOLERANCE_NS


@pytest.mark.parametrize("kind", [PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL])
@pytest.mark.parametrize(
    ("workload", "chosen"),
    [
        (attention(lengths=Lengths.UNIFORM), alone(span_tokens=192, speculative=True)),
        (attention(lengths=Lengths.UNIFORM), alone(span_tokens=192, speculative=True, engine=AttentionEngine.MMA)),
        (attention(), alone(cluster=4, tile_tokens=32, num_stages=8, span_tokens=128)),
        (attention(lengths=Lengths.UNIFORM), alone(tile_tokens=16, num_stages=16, span_tokens=16, by_length=True)),
        (attention(d_out=520), BEHIND["wgmma, 100 % asked for early"]),
    ],
    ids=["ragged", "cp.async", "clusters", "by length", "pair"],
)
def test_each_cta_of_an_attention_has_its_tasks_at_the_lengths_that_are_timed(
    supervisor: GpuSupervisor, workload: Workload, chosen: Schedule, kind: PlanKind
) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, supervisor.target.gpu):
        pytest.skip(reason)
    trace, products = traced(supervisor, problem(workload), Candidate(plan_kind=kind, schedule=chosen))
    (plan,) = own_plans_for(workload, supervisor.target.gpu, Candidate(plan_kind=kind, schedule=chosen))
    mine = [span for span in trace.spans if span.op == len(workload.tile_ops)]
    live = sum(len(plan.live_spans(length)) for length in workload.launch_ops[0].timed_lengths)
    tiles = {(span.tile_m, span.tile_n) for span in mine}
    assert len(tiles) >= live * plan.op.kv_heads * plan.num_blocks
    assert len(mine) == len(tiles) * plan.cluster
    assert {span.launch for span in mine} == {0}
    assert all(
        0 <= s.taken_ns <= s.ready_ns <= s.loaded_ns <= s.computed_ns <= s.stored_ns <= trace.makespan_ns for s in mine
    )
    assert trace.makespan_ns < 1e6
    others = [span for span in trace.spans if span.op < len(workload.tile_ops)]
    assert len(others) == sum(plan.plan.num_tasks for plan in products)
    if others:
        assert max(s.stored_ns for s in others) > max(s.stored_ns for s in mine) - TOLERANCE_NS


@pytest.mark.parametrize(
    ("kind", "name"), [(PlanKind.FUSED_PDL, "wgmma, 16 rows, tickets"), (PlanKind.N_LAUNCHES, "mma")], ids=str
)
def test_a_layers_trace_has_its_attention_in_front_of_its_products(
    supervisor: GpuSupervisor, kind: PlanKind, name: str
) -> None:
    if reason := attention_engine_problem(AttentionEngine.TMA, supervisor.target.gpu):
        pytest.skip(reason)
    trace, products = traced(supervisor, problem(LAYER), Candidate(plan_kind=kind, schedule=IN_LAYERS[name]))
    assert trace.op_names == op_names(LAYER)
    first = [span for span in trace.spans if span.launch == 0]
    assert {trace.op_names[span.op] for span in first} == {"attention"}
    assert len(trace.spans) == len(first) + sum(one.plan.num_tasks for one in products)
    done_ns = max(span.computed_ns for span in first)
    readers = [span for span in trace.spans if trace.op_names[span.op] == LAYER.tile_ops[0].name]
    assert min(span.loaded_ns for span in readers) > done_ns - TOLERANCE_NS
