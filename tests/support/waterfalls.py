"""Counters measured on a GPU, for the bars of a run's time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.core.insight.waterfall import ACTIVE_CYCLES, COUNTED_CLOCK, MEAN_TENSOR_CYCLES, MOST_TENSOR_CYCLES
from tuner.core.trial.reports.inspection import Counter, CounterReport

#: Both sides of six pairs on an H200.
ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks/results/h200/waterfall.json").read_text()
)["rows"]


def report(values: Mapping[str, float]) -> CounterReport:
    """A report with the counters `values`."""
    counters = tuple(Counter(name=name, unit="", description="", value=value) for name, value in values.items())
    return CounterReport(counters=counters, num_passes=13)


def counted(time_us: float) -> CounterReport:
    """Counters of a run in which SMs are active nine tenths of the time, half of that with products; the busiest SM a
    quarter longer."""
    cycles = {ACTIVE_CYCLES: 0.9 * time_us, MEAN_TENSOR_CYCLES: 1.8 * time_us, MOST_TENSOR_CYCLES: 2.25 * time_us}
    return report({COUNTED_CLOCK: 1e9} | {name: 1e3 * value for name, value in cycles.items()})
