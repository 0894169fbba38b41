"""The results of inspecting one candidate: hardware counters, and a trace from inside the kernel.

Neither is collected while a time is measured: counters replay the kernel under the profiler, and a trace needs another
build.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One hardware metric, or a figure derived from several."""

    #: The vendor's name, e.g. ``dram__bytes_read.sum``, or our own name for a derived figure, e.g.
    #: ``dram_read_over_floor``.
    name: str
    #: e.g. ``bytes``, ``%``; empty for a plain number.
    unit: str
    #: One sentence.
    description: str
    value: float


@dataclass(frozen=True, kw_only=True)
class CounterReport:
    """The profiler's counts over one cold run of a candidate."""

    #: Metrics as read, then derived figures.
    counters: tuple[Counter, ...]
    #: How many times the kernel was replayed.
    num_passes: int
    #: Metric -> why this GPU cannot read it.
    absent: dict[str, str] = field(default_factory=dict)
    #: Why there are no counters at all (no permission, no library, a driver that is too old); empty if there are.
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class EnergyReport:
    """The energy per run of a candidate under continuous load, for the whole card, including idle power."""

    #: Millijoules per run; None if not measured.
    run_mj: float | None
    #: Mean power over the window, watts, and the window's seconds; 0 if nothing was measured, or it is simulated.
    power_w: float = 0.0
    window_s: float = 0.0
    #: Why there is no energy (no counter, or caches that one run would not leave cold); empty if there is one.
    reason: str = ""


def no_energy(reason: str) -> EnergyReport:
    """A report without an energy."""
    return EnergyReport(run_mj=None, reason=reason)


def no_counters(reason: str) -> CounterReport:
    """A report without counters."""
    return CounterReport(counters=(), num_passes=0, reason=reason)


@dataclass(frozen=True, kw_only=True)
class TaskSpan:
    """The times of one task, nanoseconds since the first task of the run was taken."""

    #: Launch of the candidate, and the task's position in that launch's plan.
    launch: int
    task: int
    op: int
    tile_m: int
    tile_n: int
    cta: int
    sm: int
    #: When its CTA started on it; a ticket is drawn a little earlier, while the previous task ends.
    taken_ns: int
    #: When its waits were over or, without waits, its words were read.
    ready_ns: int
    #: When its first operands were in shared memory.
    loaded_ns: int
    #: When its last product was issued.
    computed_ns: int
    #: When its tile was stored and published.
    stored_ns: int


@dataclass(frozen=True, kw_only=True)
class OpShares:
    """How CTAs spent their time on one op; the four shares add up to 1 (all are 0 if no time was recorded)."""

    op: str
    wait: float
    load: float
    compute: float
    store: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A Gantt chart of one run of a candidate."""

    #: The spans by launch and task; empty if there is no trace.
    spans: tuple[TaskSpan, ...]
    op_names: tuple[str, ...]
    #: Time from when the first task is taken until the last one is stored.
    makespan_ns: int
    #: One entry per op.
    shares: tuple[OpShares, ...]
    #: Share of all CTAs' time, from their last task's end to the end of their launch.
    tail: float
    #: Whether it is simulated.
    simulated: bool
    #: Why there is no trace (the library's kernels have none, or the traced build failed); empty if there is one.
    reason: str = ""
