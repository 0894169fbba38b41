from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import SMALL, ordering, tiling
from tuner.core.insight.traces.gantt import gantt_of_trace
from tuner.core.insight.traces.tracing import (
    Stamped,
    Stamps,
    make_trace,
    no_trace,
    spans_from_stamps,
    trace_from_stamps,
    trace_metrics,
)
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.verify import VerifiedPlan, verify
from tuner.core.schedule.ordering import Assignment
from tuner.core.trial.reports.inspection import TaskSpan
from tuner.ops.attention.plans.tasks import AttentionPlan, assign
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.stamps import stamped_of
from tuner.ops.gemm.pairs import ffn_pair

OPS = ("up", "down")
#: 2025, in nanoseconds since 1970, which a double cannot resolve.
EPOCH_NS = 1_750_000_000_123_456_789


def span(task: int, op: int, cta: int, *times_ns: int, launch: int = 0) -> TaskSpan:
    taken, ready, loaded, computed, stored = times_ns
    return TaskSpan(
        launch=launch, task=task, op=op, tile_m=0, tile_n=task, cta=cta, sm=cta,
        taken_ns=taken, ready_ns=ready, loaded_ns=loaded, computed_ns=computed, stored_ns=stored,
    )  # fmt: skip


def test_shares_add_up_to_one_and_time_begins_with_the_first_task() -> None:
    spans = (span(0, 0, 0, 1000, 1000, 1100, 1700, 1800), span(1, 1, 0, 1800, 2000, 2100, 2600, 2800))
    trace = make_trace(spans, OPS, [1], simulated=False)
    assert trace.spans[0].taken_ns == 0
    assert trace.makespan_ns == 1800
    up, down = trace.shares
    assert (up.op, up.wait, up.load, up.compute, up.store) == ("up", 0.0, 0.125, 0.75, 0.125)
    assert (down.op, down.wait, down.load, down.compute, down.store) == ("down", 0.2, 0.1, 0.5, 0.2)


def test_what_came_in_while_a_task_waited_is_no_load_of_less_than_nothing() -> None:
    trace = make_trace((span(0, 0, 0, 0, 400, 100, 900, 1000),), OPS, [1], simulated=False)
    up = trace.shares[0]
    assert (up.wait, up.load, up.compute, up.store) == (0.4, 0.0, 0.5, 0.1)
    gantt = gantt_of_trace(trace, (), 1)
    assert gantt.shares()["up"] == {"wait": 0.4, "load": 0.0, "compute": 0.5, "store": 0.1}
    assert gantt.per_sm() == [(0, 1, {"wait": 400, "load": 0, "compute": 500, "store": 100})]


def test_a_task_whose_waits_were_over_before_it_was_taken_waited_for_nothing() -> None:
    """A warp that loads inputs runs ahead of those that multiply."""
    trace = make_trace((span(0, 0, 0, 100, 40, 200, 900, 1100),), OPS, [1], simulated=False)
    up = trace.shares[0]
    assert (up.wait, up.load, up.compute, up.store) == (0.0, 0.1, 0.7, 0.2)
    assert gantt_of_trace(trace, (), 1).per_sm() == [(0, 1, {"wait": 0, "load": 100, "compute": 700, "store": 200})]


def test_the_tail_is_the_idle_end_of_every_cta_of_every_launch() -> None:
    spans = (
        span(0, 0, 0, 0, 0, 0, 0, 100),
        span(1, 0, 1, 0, 0, 0, 0, 60),
        span(0, 1, 0, 200, 200, 200, 200, 250, launch=1),
    )
    assert make_trace(spans[:2], OPS, [2], simulated=False).tail == pytest.approx(40 / 200)
    assert make_trace(spans[:2], OPS, [3], simulated=False).tail == pytest.approx((40 + 100) / 300)
    assert make_trace(spans, OPS, [2, 2], simulated=False).tail == pytest.approx((40 + 50) / (200 + 100))


def test_an_op_that_took_no_time_has_no_shares() -> None:
    trace = make_trace((span(0, 0, 0, 5, 5, 5, 5, 5),), OPS, [1], simulated=True)
    assert [op.wait + op.load + op.compute + op.store for op in trace.shares] == [0, 0]
    assert (trace.tail, trace.makespan_ns) == (0.0, 0)


def test_a_trace_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        make_trace((), OPS, [1], simulated=False)


def test_the_figures_of_a_trial_are_the_shares_the_tail_and_the_makespan() -> None:
    spans = (span(0, 0, 0, 0, 100, 200, 900, 1000), span(1, 1, 1, 0, 0, 0, 0, 500))
    figures = {
        metric.tag: (metric.value, metric.unit) for metric in trace_metrics(make_trace(spans, OPS, [2], simulated=True))
    }
    assert figures["wait_share.up"] == (0.1, "")
    assert figures["compute_share.up"] == (pytest.approx(0.7), "")
    assert figures["store_share.down"] == (1.0, "")
    assert figures["tail_share"] == (0.25, "")
    assert figures["traced_makespan"] == (1.0, "us")
    assert len(figures) == 2 * 4 + 2
    assert trace_metrics(no_trace("no card", simulated=False)) == ()


def verified_plan() -> VerifiedPlan:
    graph = tile_graph(ffn_pair(m=64, d_in=64, d_hidden=128, d_out=64), tiling((16, 32), (16, 32), k=32))
    gpu = replace(CATALOGUE["h200"], num_sms=5)
    return verify(make_plan(graph, ordering(assignment=Assignment.STATIC), gpu), graph, SMALL, gpu)


def a_plan() -> Plan:
    return verified_plan().plan


def stamped(plan: Plan, truth_ns: np.ndarray, begin_ns: int, life_ns: int, tick_ns: int) -> Stamps:
    """The stamps of CTAs with the true times `truth_ns` [num_tasks, 5]: SM s counts from its own offset, at 1.5 + s /
    100 GHz, and the global timer advances in ticks, whose edges a CTA detects within 20 ns."""

    def cycles(sm: int, ns: np.ndarray) -> np.ndarray:
        return np.round((ns - EPOCH_NS).astype(np.float64) * (1.5 + sm / 100)).astype(np.int64) + 10**12 * (sm + 1)

    table = np.full((plan.num_tasks + plan.num_ctas, 6), -1, dtype=np.int64)
    for cta in range(plan.num_ctas):
        sm = 7 * cta % 11
        for task in range(plan.queues[cta], plan.queues[cta + 1]):
            table[task, :5] = cycles(sm, truth_ns[task])
            table[task, 5] = cta
        for column, at_ns in ((0, begin_ns), (2, begin_ns + life_ns)):
            edge_ns = -(-at_ns // tick_ns) * tick_ns
            table[plan.num_tasks + cta, column] = cycles(sm, np.array([edge_ns + 20 * (cta % 2)]))[0]
            table[plan.num_tasks + cta, column + 1] = edge_ns
        table[plan.num_tasks + cta, 4:] = sm, 0
    return table


def lives(plan: Plan) -> np.ndarray:
    """[num_tasks, 5] nanoseconds: each CTA runs its tasks one after the other."""
    truth = np.zeros((plan.num_tasks, 5), dtype=np.int64)
    for cta in range(plan.num_ctas):
        at_ns = EPOCH_NS + 5_000 + 13 * cta
        for task in range(plan.queues[cta], plan.queues[cta + 1]):
            steps = np.array([10, 400 + task, 300, 9_000 + 7 * task, 800])
            truth[task] = at_ns + np.cumsum(steps)
            at_ns = int(truth[task, -1])
    return truth


@pytest.mark.parametrize("tick_ns", [32, 1024])
def test_private_clocks_come_to_one_time_base(tick_ns: int) -> None:
    plan = a_plan()
    truth = lives(plan)
    table = stamped(plan, truth, EPOCH_NS + 100, 300_000, tick_ns)
    spans = spans_from_stamps([Stamped.of(0, plan, table)])
    found = np.array([[s.taken_ns, s.ready_ns, s.loaded_ns, s.computed_ns, s.stored_ns] for s in spans])
    shift = int(truth[0, 0]) - int(found[0, 0])
    assert np.abs(found + shift - truth).max() <= 50
    assert (np.diff(found, axis=1) >= 0).all()
    assert [(s.task, s.op, s.tile_m, s.tile_n) for s in spans] == [
        (task, *words) for task, words in enumerate(plan.tasks[:, :3].tolist())
    ]
    assert [s.cta for s in spans] == table[: plan.num_tasks, 5].tolist()
    assert all(s.sm == 7 * s.cta % 11 for s in spans)


def test_two_launches_share_the_time_base() -> None:
    plan = a_plan()
    truth = lives(plan)
    later_ns = 400_000
    tables = [
        stamped(plan, truth, EPOCH_NS + 100, 300_000, 32),
        stamped(plan, truth + later_ns, EPOCH_NS + later_ns + 100, 300_000, 32),
    ]
    spans = spans_from_stamps([Stamped.of(launch, plan, table) for launch, table in enumerate(tables)])
    first, second = (spans[task + launch * plan.num_tasks] for launch, task in ((0, 3), (1, 3)))
    assert (first.launch, second.launch) == (0, 1)
    assert second.taken_ns - first.taken_ns == pytest.approx(later_ns, abs=50)


def test_an_sm_that_lived_shortly_takes_the_slope_of_the_others() -> None:
    plan = a_plan()
    truth = lives(plan)
    table = stamped(plan, truth, EPOCH_NS + 100, 300_000, 32)
    row = plan.num_tasks + plan.num_ctas - 1
    table[row, 2:4] = table[row, 0] + 40, table[row, 1] + 32  # one tick: 20 % off 1.5 GHz
    found = spans_from_stamps([Stamped.of(0, plan, table)])
    last = [s for s in found if s.cta == plan.num_ctas - 1]
    for s in last:
        want = truth[s.task, 4] - truth[s.task, 0]
        assert s.stored_ns - s.taken_ns == pytest.approx(want, rel=0.05)


def test_a_task_or_cta_without_stamps_is_named() -> None:
    plan = a_plan()
    table = stamped(plan, lives(plan), EPOCH_NS + 100, 300_000, 32)
    lost = table.copy()
    lost[7, 3] = -1
    with pytest.raises(ValueError, match="task 7 of launch 0 recorded no stamps"):
        spans_from_stamps([Stamped.of(0, plan, lost)])
    lost = table.copy()
    lost[plan.num_tasks + 1, 2] = -1
    with pytest.raises(ValueError, match="CTA 1 of launch 0 recorded no stamps"):
        spans_from_stamps([Stamped.of(0, plan, lost)])
    with pytest.raises(ValueError, match="shape"):
        spans_from_stamps([Stamped.of(0, plan, table[1:])])


def test_clocks_that_stand_still_are_refused() -> None:
    plan = a_plan()
    table = np.ones((plan.num_tasks + plan.num_ctas, 6), dtype=np.int64)
    table[: plan.num_tasks, 5] = 0
    with pytest.raises(ValueError, match="did not advance"):
        spans_from_stamps([Stamped.of(0, plan, table)])


def test_stamps_that_tell_no_times_are_a_reason_and_others_a_trace() -> None:
    verified = verified_plan()
    plan = verified.plan
    table = stamped(plan, lives(plan), EPOCH_NS + 100, 300_000, 32)
    trace = trace_from_stamps(verified.graph.workload, (), [verified], [table])
    assert (trace.op_names, trace.reason, trace.simulated) == (("up", "down"), "", False)
    assert len(trace.spans) == plan.num_tasks
    table[2, 0] = -1
    assert "task 2" in trace_from_stamps(verified.graph.workload, (), [verified], [table]).reason
    assert trace_from_stamps(verified.graph.workload, (), [verified], [], "it hung").reason == "it hung"


def attention_words() -> tuple[AttentionPlan, Stamps]:
    """A plan of two clusters of two CTAs, and the stamps of its launch: a CTA's second task begins when its first is
    stored, and no span is added up in the last."""
    op = DecodeAttention(sequences=2, kv_heads=1, query_heads=8, head_dim=64, max_length=256)
    plan = assign(op, span_tokens=128, columns=8, num_queues=2, contiguous=True, cluster=2)
    words = np.zeros((plan.num_ctas, 1 + plan.most_tasks, 7), dtype=np.int64)
    for cta in range(plan.num_ctas):
        start = 10_000 * cta
        words[cta, 0] = start + 1, EPOCH_NS, start + 4_001, EPOCH_NS + 2_000, cta, 0, 0
        for number, task in enumerate(plan.tasks[plan.queues[cta // 2] : plan.queues[cta // 2 + 1]].tolist()):
            times = np.array([100, 300, 900, 1_000, 1_200, 1_500 * (number == 0)]) + 1_500 * number
            words[cta, 1 + number] = [*(start + 1 + times), task[0] << 32 | task[1]]
        words[cta, 2, 5] = 0
    return plan, words


def test_a_task_of_an_attention_is_stored_when_its_cta_has_done_all_for_it() -> None:
    plan, words = attention_words()
    first, second = spans_from_stamps([stamped_of(0, 3, plan, words)])[2:4]
    assert (first.op, first.cta, first.tile_m, first.tile_n) == (3, 1, 0, 0)
    assert (second.op, second.cta, second.tile_m, second.tile_n) == (3, 1, 0, 1)
    times = [first.taken_ns, first.ready_ns, first.loaded_ns, first.computed_ns, first.stored_ns]
    assert np.subtract(times, times[0]).tolist() == [0, 0, 100, 400, 700]
    assert (second.taken_ns - times[0], second.stored_ns - second.taken_ns) == (750, 550)


def test_a_cta_of_an_attention_that_left_no_stamps_is_named_and_one_without_tasks_is_none() -> None:
    plan, words = attention_words()
    asking = replace(plan, num_asking=1)
    assert len(stamped_of(0, 0, asking, np.concatenate([words, np.zeros_like(words[:2])])).ctas) == 4
    words[2, 0, 3] = 0
    with pytest.raises(ValueError, match="CTA 2 of launch 1 recorded no stamps"):
        stamped_of(1, 0, plan, words)
