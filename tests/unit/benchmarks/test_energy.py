"""The kernels that the benchmark of energy makes of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.common.rows import choose_rows
from benchmarks.trust.energy import ROW, Variant, kept_schedules, slept, traffic
from tests.support.cases import H200
from tests.support.conformance.table import CASES
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.reports.inspection import Counter, CounterReport, no_counters
from tuner.workers.protocol.messages import Work
from tuner.workers.source.render import render


@pytest.mark.parametrize("engine", ["wgmma", "mma", "simt"])
def test_each_engine_has_one_loop_that_waits_for_a_signal(engine: str) -> None:
    pairs = (case for case in CASES if case.workload.tile_ops and not case.workload.launch_ops)
    case = next(one for one in pairs if (found := one.on(H200).schedule) and str(found.tiling.engine) == engine)
    schedule = case.on(H200).schedule
    assert schedule is not None
    source = render(case.workload, schedule.tiling)
    changed = slept(source)
    assert changed.replace("    __nanosleep(100);\n", "", 1) == source != changed
    assert changed.index("load_relaxed_gpu(address)") < changed.index("__nanosleep(100)")


def test_another_loop_is_refused() -> None:
    with pytest.raises(ValueError, match="the loop of a wait has changed"):
        slept("for (;;) {}")


class Counting:
    """Counts so many bytes of one kind of traffic, or may not count."""

    def __init__(self, report: CounterReport) -> None:
        self.report = report
        self.asked = list[tuple[Candidate, tuple[str, ...]]]()

    def count(self, problem: Problem, candidate: Candidate, metrics: tuple[str, ...]) -> CounterReport:
        self.asked.append((candidate, metrics))
        return self.report


def test_the_traffic_of_a_run_is_what_the_profiler_counts_and_none_of_a_changed_kernel() -> None:
    row = choose_rows(names=[ROW])[0]
    (schedule, *_) = kept_schedules(row, H200)
    variant = Variant(candidate=fused(schedule), work=Work(plan_kind=PlanKind.FUSED), origin="kept")
    counters = [
        Counter(name=name, unit="bytes", description="", value=value)
        for name, value in (("lts__t_bytes.sum", 3e8), ("dram__bytes_read.sum", 2.345678e8), ("another", 1.0))
    ]
    card = Counting(CounterReport(counters=tuple(counters), num_passes=1))
    assert traffic(card, row.problem, variant) == {"l2_mb": 300.0, "dram_read_mb": 234.568}
    assert card.asked == [(variant.candidate, ("lts__t_bytes.sum", "dram__bytes_read.sum"))]
    assert traffic(card, row.problem, replace(variant, is_sleeping=True)) == {}
    assert len(card.asked) == 1
    refused = Counting(no_counters("administrators alone may"))
    assert traffic(refused, row.problem, variant) == {"no_counters": "administrators alone may"}
