"""What the twin's profiler would count: the few metrics that its model of the L2 and the DRAM can speak of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from tuner.core.inspection import Counter, CounterReport
from tuner.core.simulate import simulate
from tuner.core.verify import VerifiedPlan
from tuner.core.workload import Workload
from tuner.errors import InvalidInput

#: Metric -> unit and meaning.
METRICS: Mapping[str, tuple[str, str]] = {
    "gpu__time_duration.sum": ("ns", "Time of the run."),
    "dram__bytes_read.sum": ("bytes", "Bytes read from DRAM."),
    "dram__bytes_write.sum": ("bytes", "Bytes written to DRAM."),
    "lts__t_sector_hit_rate.pct": ("%", "Share of the operands' bytes that the L2 had."),
}


def check_metrics(metrics: Sequence[str]) -> None:
    """Raises:
    InvalidInput: the twin knows no such metric; the message names near ones.
    """
    for name in metrics:
        if name not in METRICS:
            near = get_close_matches(name, METRICS) or METRICS
            raise InvalidInput(
                "metrics", f"the simulated GPU has no metric called {name!r}", f"use one of {', '.join(near)}"
            )


def count(
    workload: Workload, plans: Sequence[VerifiedPlan], time_us: float, metrics: Sequence[str] | None
) -> CounterReport:
    """A report over one cold run that takes `time_us`; the library has no plans, and reads what must be read.

    Raises:
        InvalidInput: a metric is unknown.
    """
    check_metrics(metrics or ())
    timelines = [simulate(plan) for plan in plans]
    outputs = [op for index, op in enumerate(workload.ops) if not workload.consumers_of(index)]
    written_bytes = sum(op.m * op.n for op in outputs) * workload.dtype.size_bytes
    read_bytes = (sum(timeline.dram_bytes for timeline in timelines) or workload.compulsory_bytes) - written_bytes
    hit_bytes = sum(timeline.l2_hit_bytes for timeline in timelines)
    values = {
        "gpu__time_duration.sum": 1e3 * time_us,
        "dram__bytes_read.sum": float(read_bytes),
        "dram__bytes_write.sum": float(written_bytes),
        "lts__t_sector_hit_rate.pct": 100 * hit_bytes / (hit_bytes + read_bytes),
    }
    asked = METRICS if metrics is None else metrics
    counters = [
        Counter(name=name, unit=METRICS[name][0], description=f"Simulated: {METRICS[name][1]}", value=values[name])
        for name in asked
    ]
    return CounterReport(counters=tuple(counters), num_passes=1)
