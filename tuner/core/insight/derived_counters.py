"""Figures derived from hardware counters: how much more than the minimum was moved, and how close to the roofline a run
came."""

from __future__ import annotations

from dataclasses import replace

from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.inspection import Counter, CounterReport

#: The vendor's names for the counters that the figures are derived from.
DURATION_NS, DRAM_READ_BYTES, DRAM_WRITE_BYTES = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
#: The derived figures; names of rates end in ``_profiled`` if their time is the profiler's.
DERIVED = ("dram_read_over_floor", "dram_rate", "tensor_rate", "roofline_share")
_PROFILED = "_profiled"
#: Prefix for descriptions of figures that were not measured.
SIMULATED_MARK = "Simulated: "


def with_derived(
    report: CounterReport, workload: Workload, gpu: Gpu, *, time_us: float | None = None, simulated: bool = False
) -> CounterReport:
    """`report` with figures that use `time_us`, the candidate's measured time; existing ones are replaced.

    Without it, they use the profiler's own duration, which is up to twice as long, and their names say so. Figures
    whose counters are missing are left out.
    """
    raw = tuple(counter for counter in report.counters if counter.name.removesuffix(_PROFILED) not in DERIVED)
    values = {counter.name: counter.value for counter in raw}
    if time_us is None:
        suffix, whose, run_us = _PROFILED, "the profiler's duration", 1e-3 * values.get(DURATION_NS, 0.0)
    else:
        suffix, whose, run_us = "", "the measured time", time_us
    mark = SIMULATED_MARK if simulated else ""
    derived = []

    def add(name: str, unit: str, description: str, value: float) -> None:
        derived.append(Counter(name=name, unit=unit, description=mark + description, value=value))

    read_bytes, write_bytes = values.get(DRAM_READ_BYTES), values.get(DRAM_WRITE_BYTES)
    if read_bytes is not None:
        floor = workload.compulsory_read_bytes
        add(
            DERIVED[0],
            "",
            "Bytes read from DRAM, divided by the fewest that a cold run has to read.",
            read_bytes / floor,
        )
    if run_us > 0:
        if read_bytes is not None and write_bytes is not None:
            rate = (read_bytes + write_bytes) / run_us / 1e6
            add(DERIVED[1] + suffix, "TB/s", f"Bytes read from and written to DRAM, divided by {whose}.", rate)
        rate = workload.num_flops / run_us / 1e6
        add(DERIVED[2] + suffix, "TFLOP/s", f"Operations that the workload needs, divided by {whose}.", rate)
        share = 100 * reference_us(workload, gpu) / run_us
        add(DERIVED[3] + suffix, "%", f"The roofline's time divided by {whose}; 100 is the data sheet's peak.", share)
    return replace(report, counters=(*raw, *derived))
