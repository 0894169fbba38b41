"""Where the time of a run goes, as stacked bars: only arithmetic, on measured numbers.

An SM multiplies, waits for operands, finishes tiles, or is idle. Its counters give the cycles in which it was active
and those in which its tensor cores multiplied. The busiest SM determines how long the kernels take. A part that was not
measured separately is included in another bar, which `Waterfall.notes` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from tuner.core.trial.outcome import Measured
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, TaskSpan, Trace
from tuner.core.trial.samples import kept
from tuner.core.trial.stats import median

#: Maximum relative difference between the bars' sum and the measured time.
MOST_OFF = 0.05
#: Tensor cores per SM, whose cycles its counter adds up.
TENSOR_CORES = 4
#: The vendor's names for the counters that the bars are computed from.
COUNTED_CLOCK, ACTIVE_CYCLES = "sm__cycles_elapsed.avg.per_second", "sm__cycles_active.max"
MOST_TENSOR_CYCLES, MEAN_TENSOR_CYCLES = "sm__pipe_tensor_cycles_active.max", "sm__pipe_tensor_cycles_active.avg"
NEEDED = (COUNTED_CLOCK, ACTIVE_CYCLES, MOST_TENSOR_CYCLES, MEAN_TENSOR_CYCLES)
#: Operations of wgmma, by element type.
TENSOR_OPERATIONS = ("sm__ops_path_tensor_op_hgmma_src_fp16.sum", "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32.sum")


class NoWaterfall(Exception):
    """A sentence about what is missing or impossible."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Measurements of one way to run a workload; a figure that was not measured is None."""

    #: Time of a run in a graph of runs, in the same rounds as the library, microseconds.
    time_us: float
    #: Time of the same launches without work, microseconds.
    launches_us: float | None
    #: Time of gate, activation and stores, from their stamps or by leaving them out, microseconds.
    epilogue_us: float | None
    #: SM clock of the timed runs and of the counted ones, MHz. At either clock, products take the same number of
    #: cycles, and waits take the same time.
    clock_mhz: float
    counted_clock_mhz: float
    #: Cycles in which an SM had a CTA: maximum over the SMs.
    active_cycles: float
    #: Cycles in which an SM's tensor cores multiplied: maximum and mean over the SMs.
    most_tensor_cycles: float
    mean_tensor_cycles: float
    #: Operations that the workload needs, divided by those that the tensor cores did; at most 1.
    needed_share: float | None


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """Bars of a run, microseconds, in drawing order."""

    #: Time of the multiplications that the workload needs, if they were evenly distributed over the SMs.
    main_loop_us: float
    #: Time of multiplications for padding rows and columns.
    unneeded_rows_us: float
    #: Additional multiplication time of the busiest SM compared with the mean.
    tail_us: float
    #: An SM is active, but its tensor cores are not: it waits for operands from the L2, or for signals.
    l2_traffic_us: float
    #: Gate, activation, sums of parts, stores.
    epilogue_us: float
    #: Time from one launch to the next, and from one run to the next.
    launch_us: float
    #: Bar -> which bar includes it, if it was not measured separately.
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def bars_us(self) -> dict[str, float]:
        """The bars by name, without the unit."""
        return {one.name.removesuffix("_us"): getattr(self, one.name) for one in fields(self) if one.name != "notes"}

    @property
    def sum_us(self) -> float:
        """Sum of all bars."""
        return float(sum(self.bars_us.values()))

    def off_by(self, time_us: float) -> float:
        """Difference between the sum and the measured time, relative to the latter."""
        return self.sum_us / time_us - 1

    def holds(self, time_us: float) -> bool:
        """Whether the bars explain the measured time."""
        return abs(self.off_by(time_us)) <= MOST_OFF


#: Titles of the bars.
TITLES = {
    "main_loop": "multiplications that the workload needs",
    "unneeded_rows": "multiplications for padding rows",
    "tail": "extra work of the busiest SM",
    "l2_traffic": "waiting for operands or signals",
    "epilogue": "epilogues: activations and stores",
    "launch": "launches, and gaps between runs",
}


def waterfall_of(figures: Figures) -> Waterfall:
    """The bars of a run. If launches were not timed without work, their bar is the time that the others leave.

    Raises:
        ValueError: a figure is not a possible share, or figures are in an impossible order.
    """
    if figures.needed_share is not None and not 0 < figures.needed_share <= 1.001:
        raise ValueError(
            f"needed_share is {figures.needed_share}: it is the operations needed divided by those done, so at most 1"
        )
    of_sms = (figures.mean_tensor_cycles, figures.most_tensor_cycles, figures.active_cycles)
    if not 0 < of_sms[0] <= of_sms[1] <= of_sms[2]:
        raise ValueError(
            f"the average SM multiplied for {of_sms[0]} cycles, the busiest one for {of_sms[1]}, and one was active "
            f"for {of_sms[2]}: they must ascend in this order"
        )
    mean_us = figures.mean_tensor_cycles / figures.clock_mhz
    most_us = figures.most_tensor_cycles / figures.clock_mhz
    idle_us = (
        figures.active_cycles - figures.most_tensor_cycles
    ) / figures.counted_clock_mhz  # memory has its own clock
    needed = 1.0 if figures.needed_share is None else min(figures.needed_share, 1.0)
    epilogue_us = figures.epilogue_us or 0.0
    waiting_us = max(0.0, idle_us - epilogue_us)
    left_us = max(0.0, figures.time_us - most_us - waiting_us - epilogue_us)
    return Waterfall(
        main_loop_us=mean_us * needed,
        unneeded_rows_us=mean_us * (1 - needed),
        tail_us=most_us - mean_us,
        l2_traffic_us=waiting_us,
        epilogue_us=epilogue_us,
        launch_us=left_us if figures.launches_us is None else figures.launches_us,
        notes=_notes(figures),
    )


def _notes(figures: Figures) -> dict[str, str]:
    notes = {
        "unneeded_rows": ("not counted: included in the multiplications that the workload needs", figures.needed_share),
        "epilogue": ("not measured: included in the waiting; a trace would separate it", figures.epilogue_us),
        "launch": ("not measured directly: it is the time that the other bars leave", figures.launches_us),
    }
    return {name: note for name, (note, value) in notes.items() if value is None}


def stamped_epilogue_us(spans: Sequence[TaskSpan]) -> float:
    """Time that a CTA's tasks spend between last product and store, averaged over the CTAs."""
    num_ctas = len({(span.launch, span.cta) for span in spans}) / len({span.launch for span in spans})
    return sum(span.stored_ns - span.computed_ns for span in spans) / num_ctas / 1e3


def waterfall_of_trial(
    outcome: Measured, num_flops: int, results: Iterable[CounterReport | EnergyReport | Trace | None]
) -> Waterfall:
    """The waterfall of a trial, from the results of its inspections.

    Raises:
        NoWaterfall: its counters are missing, or inconsistent.
    """
    by_type = {type(one): one for one in results}
    counters, trace = by_type.get(CounterReport), by_type.get(Trace)
    assert counters is None or isinstance(counters, CounterReport)
    assert trace is None or isinstance(trace, Trace)
    if counters is None or counters.reason:
        raise NoWaterfall(f"no counters were collected{f': {counters.reason}' if counters else ''}")
    counted = {one.name: one.value for one in counters.counters}
    if missing := [name for name in NEEDED if name not in counted]:
        raise NoWaterfall(f"not counted: {', '.join(missing)}")
    clocks = [float(one.clock_mhz) for one in kept(outcome.rounds) if one.clock_mhz]
    operations = sum(counted.get(name, 0.0) for name in TENSOR_OPERATIONS)
    spans = trace.spans if trace else ()
    figures = Figures(
        time_us=outcome.time_us,
        launches_us=None,
        epilogue_us=stamped_epilogue_us(spans) if spans else None,
        clock_mhz=median(clocks) if clocks else counted[COUNTED_CLOCK] / 1e6,
        counted_clock_mhz=counted[COUNTED_CLOCK] / 1e6,
        active_cycles=counted[ACTIVE_CYCLES],
        most_tensor_cycles=counted[MOST_TENSOR_CYCLES] / TENSOR_CORES,
        mean_tensor_cycles=counted[MEAN_TENSOR_CYCLES] / TENSOR_CORES,
        needed_share=num_flops / operations if operations else None,
    )
    try:
        return waterfall_of(figures)
    except ValueError as error:
        raise NoWaterfall(str(error)) from error


def in_words(bars: Waterfall, time_us: float) -> list[str]:
    """One line per bar, and one about their sum."""
    lines = [
        f"  {us:8.2f} µs {us / time_us:6.1%}  {TITLES[name]}" + (f" ({bars.notes[name]})" if name in bars.notes else "")
        for name, us in bars.bars_us.items()
    ]
    return [*lines, sum_in_words(bars, time_us)]


def sum_in_words(bars: Waterfall, time_us: float) -> str:
    """Whether the bars explain the time."""
    said = f"The bars add up to {bars.sum_us:.2f} µs of {time_us:.2f}"
    if bars.holds(time_us):
        return f"{said}, within {MOST_OFF:.0%}."
    return f"{said}, {bars.off_by(time_us):+.1%}: they do not explain the measured time."
