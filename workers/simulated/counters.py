"""The counters of the simulated GPU's profiler: the few metrics that its model of L2 and DRAM can produce."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from tuner.core.insight.derived_counters import (
    DRAM_READ_BYTES,
    DRAM_WRITE_BYTES,
    DURATION_NS,
    SIMULATED_MARK,
    with_derived,
)
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.trial.reports.inspection import Counter, CounterReport
from tuner.errors import InvalidInput

from ..cupti.metrics import CATALOGUE

#: The metrics of the model, by the profiler's names.
METRICS = (DURATION_NS, DRAM_READ_BYTES, DRAM_WRITE_BYTES, "lts__t_sector_hit_rate.pct")


def check_metrics(metrics: Sequence[str]) -> None:
    """Raises: InvalidInput: the simulated GPU does not have such a metric; the message names similar ones."""
    for name in metrics:
        if name not in METRICS:
            near = get_close_matches(name, METRICS) or METRICS
            raise InvalidInput(
                "metrics", f"the simulated GPU has no metric called {name!r}", f"use one of {', '.join(near)}"
            )


def count(
    workload: Workload, gpu: Gpu, plans: Sequence[VerifiedPlan], time_us: float, metrics: Sequence[str] | None
) -> CounterReport:
    """A report over one cold run that takes `time_us`; the library has no plans, and reads the compulsory bytes.

    Raises:
        InvalidInput: a metric is unknown.
    """
    check_metrics(metrics or ())
    timelines = [simulate(plan) for plan in plans]
    written_bytes = workload.compulsory_bytes - workload.compulsory_read_bytes
    read_bytes = sum(timeline.dram_read_bytes for timeline in timelines) or workload.compulsory_read_bytes
    hit_bytes = sum(timeline.l2_hit_bytes for timeline in timelines)
    values = (1e3 * time_us, read_bytes, written_bytes, 100 * hit_bytes / (hit_bytes + read_bytes))
    by_name = dict(zip(METRICS, values, strict=True))
    counters = tuple(
        Counter(
            name=name,
            unit=CATALOGUE[name].unit,
            description=SIMULATED_MARK + CATALOGUE[name].description,
            value=float(by_name[name]),
        )
        for name in metrics or METRICS
    )
    report = CounterReport(counters=counters, num_passes=1)
    return report if metrics else with_derived(report, workload, gpu, simulated=True)
