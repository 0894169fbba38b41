"""Traces and forecasts of an attention between products: its launch appears at its position in the order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.cases import H200
from tests.support.on_card import problem
from tuner.core.insight.traces.gantt import Gantt, forecast_gantt, gantt_of_trace
from tuner.core.insight.traces.tracing import Stamps, trace_from_stamps
from tuner.core.plan.table.words import Plan
from tuner.core.problem.gpu import Target
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import own_plans_for, plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

#: Duration of a launch, nanoseconds; two cycles are one.
LASTS = 1000


def case(num_behind: int) -> tuple[Workload, Candidate, list[list[int]]]:
    """A workload, a candidate, and the ops of its launches in order; the attention's number follows the others."""
    workload = between(num_behind=num_behind)
    kind, starts, launches = {
        0: (PlanKind.TWO_LAUNCHES_PDL, (), [[0], [1]]),
        1: (PlanKind.N_LAUNCHES_PDL, (), [[0], [2], [1]]),
        3: (PlanKind.RUNS, (1,), [[0], [4], [1, 2, 3]]),
    }[num_behind]
    return workload, candidate_of(workload, kind, starts), launches


def check_order(gantt: Gantt, workload: Workload, launches: list[list[int]]) -> None:
    """Checks that each launch has its ops, and begins when the previous one has ended."""
    of_launch = [gantt.tasks[gantt.tasks[:, 0] == launch] for launch in range(len(gantt.num_ctas))]
    assert [sorted(set(rows[:, 1].tolist())) for rows in of_launch] == launches
    begins, ends = [int(rows[:, 6].min()) for rows in of_launch], [int(rows[:, 10].max()) for rows in of_launch]
    assert all(begin >= end for begin, end in zip(begins[1:], ends, strict=False))
    assert gantt.signals is not None
    is_attention = gantt.tasks[:, 1] == len(workload.tile_ops)
    assert is_attention.any()
    assert (gantt.signals.posts[is_attention] == -1).all(), "stream order replaces signals of an attention"
    assert (gantt.signals.waits_of[is_attention] == 0).all()


@pytest.mark.parametrize("num_behind", [0, 1, 3])
def test_a_forecast_has_the_attention_where_it_runs(num_behind: int) -> None:
    workload, candidate, launches = case(num_behind)
    check_order(forecast_gantt(workload, H200, candidate), workload, launches)


@pytest.mark.parametrize("num_behind", [0, 1, 3])
def test_a_simulated_trace_has_the_attention_where_it_runs(num_behind: int) -> None:
    workload, candidate, launches = case(num_behind)
    evaluator = SimulatedEvaluator(Target(gpu=H200), faults=Faults(hang=0, crash=0, wrong_numbers=0))
    trace = evaluator.trace(problem(workload), candidate)
    assert trace.reason == ""
    plans = plans_for(workload, H200, candidate)
    check_order(gantt_of_trace(trace, plans, H200.num_sms), workload, launches)


def stamps_of_products(plan: Plan, begin_ns: int) -> Stamps:
    """Stamps of all tasks, starting simultaneously at `begin_ns`."""
    table = np.zeros((plan.num_tasks + plan.num_ctas, 6), dtype=np.int64)
    times = 2 * (begin_ns + np.array([0, 100, 200, 300, 400]))
    table[: plan.num_tasks, :5] = times
    table[: plan.num_tasks, 5] = np.arange(plan.num_tasks) % plan.num_ctas
    table[plan.num_tasks :, :4] = 2 * begin_ns, begin_ns, 2 * (begin_ns + 500), begin_ns + 500
    table[plan.num_tasks :, 4] = np.arange(plan.num_ctas)
    return table


def stamps_of_attention(plan: AttentionPlan, begin_ns: int) -> Stamps:
    """Stamps of one task per CTA, starting at `begin_ns`."""
    words = np.zeros((plan.num_ctas, 1 + plan.most_tasks, 7), dtype=np.int64)
    words[:, 0, :4] = 2 * begin_ns, begin_ns, 2 * (begin_ns + 500), begin_ns + 500
    words[:, 0, 4] = np.arange(plan.num_ctas)
    words[:, 1, :6] = 2 * (begin_ns + np.array([10, 100, 200, 300, 300, 400]))
    return words


@pytest.mark.parametrize("num_behind", [0, 1, 3])
def test_stamps_of_a_card_are_in_the_order_of_the_launches(num_behind: int) -> None:
    workload, candidate, launches = case(num_behind)
    plans, (attention,) = plans_for(workload, H200, candidate), own_plans_for(workload, H200, candidate)
    stamps: list[Stamps] = []
    products = iter(plans)
    for number, ops in enumerate(launches, start=1):
        begin_ns = number * LASTS
        is_attention = ops == [len(workload.tile_ops)]
        stamps.append(
            stamps_of_attention(attention, begin_ns)
            if is_attention
            else stamps_of_products(next(products).plan, begin_ns)
        )
    trace = trace_from_stamps(workload, (attention,), plans, stamps)
    assert trace.reason == ""
    check_order(gantt_of_trace(trace, plans, H200.num_sms), workload, launches)
    assert trace_from_stamps(workload, (attention,), plans, stamps[:-1]).reason, "a launch recorded no stamps"
