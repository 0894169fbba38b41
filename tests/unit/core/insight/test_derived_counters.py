from __future__ import annotations

import pytest

from tuner.core.insight.derived_counters import DERIVED, DRAM_READ_BYTES, DRAM_WRITE_BYTES, DURATION_NS, with_derived
from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.trial.reports.inspection import Counter, CounterReport
from tuner.ops.gemm.pairs import ffn_pair

GPU = CATALOGUE["h200"]
WORKLOAD = ffn_pair(m=256, d_in=1024, d_hidden=4096, d_out=1024)
READ_BYTES, WRITE_BYTES, DURATION = 3.0 * WORKLOAD.compulsory_read_bytes, 1e6, 20_000.0


def report(**without: bool) -> CounterReport:
    values = {DURATION_NS: DURATION, DRAM_READ_BYTES: READ_BYTES, DRAM_WRITE_BYTES: WRITE_BYTES}
    counters = tuple(
        Counter(name=name, unit="", description="x", value=value)
        for name, value in values.items()
        if name not in without
    )
    return CounterReport(counters=counters, num_passes=1)


def derived(of: CounterReport) -> dict[str, float]:
    return {counter.name: counter.value for counter in of.counters[3:]}


def test_figures_over_the_measured_time_are_traffic_and_work_over_it() -> None:
    figures = derived(with_derived(report(), WORKLOAD, GPU, time_us=10.0))
    assert tuple(figures) == DERIVED
    assert figures["dram_read_over_floor"] == 3.0
    assert figures["dram_rate"] == pytest.approx((READ_BYTES + WRITE_BYTES) / 10e-6 / 1e12)
    assert figures["tensor_rate"] == pytest.approx(WORKLOAD.num_flops / 10e-6 / 1e12)
    assert figures["roofline_share"] == pytest.approx(100 * reference_us(WORKLOAD, GPU) / 10.0)


def test_without_a_measured_time_they_are_over_the_profilers_and_say_so() -> None:
    figures = with_derived(report(), WORKLOAD, GPU).counters[3:]
    assert [f.name for f in figures] == [DERIVED[0], *(f"{name}_profiled" for name in DERIVED[1:])]
    assert all("profiler" in f.description for f in figures[1:])
    measured = derived(with_derived(report(), WORKLOAD, GPU, time_us=DURATION / 1e3))
    assert [f.value for f in figures] == list(measured.values())


def test_a_measured_time_replaces_the_profilers_figures() -> None:
    once = with_derived(report(), WORKLOAD, GPU, time_us=10.0)
    assert with_derived(with_derived(report(), WORKLOAD, GPU), WORKLOAD, GPU, time_us=10.0) == once


def test_a_missing_counter_leaves_out_what_is_made_of_it() -> None:
    assert with_derived(report(**{DURATION_NS: True}), WORKLOAD, GPU).counters[-1].name == "dram_read_over_floor"
    names = {c.name for c in with_derived(report(**{DRAM_READ_BYTES: True}), WORKLOAD, GPU, time_us=10.0).counters}
    assert names & set(DERIVED) == {"tensor_rate", "roofline_share"}


def test_simulated_figures_are_marked() -> None:
    marked = with_derived(report(), WORKLOAD, GPU, time_us=10.0, simulated=True).counters[3:]
    assert all(counter.description.startswith("Simulated: ") for counter in marked)


def test_what_is_read_and_what_is_written_are_all_that_must_move() -> None:
    output_bytes = 256 * 1024 * 2
    assert WORKLOAD.compulsory_bytes - WORKLOAD.compulsory_read_bytes == output_bytes
    assert WORKLOAD.compulsory_read_bytes == 2 * (256 * 1024 + 2 * 1024 * 4096)
