"""What an inspection of one candidate shows: hardware counters, and a trace from inside the kernel.

Neither is ever taken while a time is measured: counters replay the kernel under the profiler, a trace is another build.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One hardware metric, or a figure derived from some."""

    #: The vendor's, e.g. ``dram__bytes_read.sum``, or ours for a derived figure, e.g. ``dram_read_over_floor``.
    name: str
    #: e.g. ``bytes``, ``%``; empty for a plain number.
    unit: str
    #: One sentence.
    description: str
    value: float


@dataclass(frozen=True, kw_only=True)
class CounterReport:
    """What the profiler counted over one cold run of a candidate."""

    #: Metrics as read, then derived figures.
    counters: tuple[Counter, ...]
    #: Times that the kernel was replayed.
    num_passes: int
    #: Metric -> why it could not be read on this GPU.
    absent: dict[str, str] = field(default_factory=dict)
    #: Why there are no counters at all (no permission, no library, a driver that is too old); empty where there are.
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class EnergyReport:
    """What one run of a candidate takes under continuous load, the whole card's: idle power included."""

    #: Millijoules of one run; None where it was not measured.
    run_mj: float | None
    #: Mean power over the window, watts, and the seconds of it; 0 where nothing was measured, or a model says it.
    power_w: float = 0.0
    window_s: float = 0.0
    #: Why there is no energy (no counter, caches that a run alone would not leave cold); empty where there is.
    reason: str = ""


def no_energy(reason: str) -> EnergyReport:
    """A report without an energy."""
    return EnergyReport(run_mj=None, reason=reason)


def no_counters(reason: str) -> CounterReport:
    """A report without counters."""
    return CounterReport(counters=(), num_passes=0, reason=reason)


@dataclass(frozen=True, kw_only=True)
class TaskSpan:
    """One task's life, nanoseconds since the first task of the run was taken."""

    #: Launch of the candidate, and the task's place in that launch's plan.
    launch: int
    task: int
    op: int
    tile_m: int
    tile_n: int
    cta: int
    sm: int
    #: Its CTA turned to it; a ticket is drawn a little earlier, under the end of the task before.
    taken_ns: int
    #: Its waits were over; where it has none, its words were read.
    ready_ns: int
    #: Its first operands were in shared memory.
    loaded_ns: int
    #: Its last product was issued.
    computed_ns: int
    #: Its tile was stored and published.
    stored_ns: int


@dataclass(frozen=True, kw_only=True)
class OpShares:
    """Where the CTAs' time went that they spent on one op; the four add up to 1 (all are 0 if no time was seen)."""

    op: str
    wait: float
    load: float
    compute: float
    store: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A Gantt chart of one run of a candidate."""

    #: By launch and task; empty where there is no trace.
    spans: tuple[TaskSpan, ...]
    op_names: tuple[str, ...]
    #: From the first task taken to the last one stored.
    makespan_ns: int
    #: One entry per op.
    shares: tuple[OpShares, ...]
    #: Share of all CTAs' time, from their last task's end to the end of their launch.
    tail: float
    #: Whether the simulated twin drew it.
    simulated: bool
    #: Why there is no trace (the library's kernels have none, the traced build failed); empty where there is.
    reason: str = ""
