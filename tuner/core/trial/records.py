"""The records of a job: the store keeps these, the service returns them, the wire copies them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import JobSpec, JobState
from tuner.core.trial.outcome import Metric
from tuner.core.trial.reports.baselines import BaselineTime
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchTime

T = TypeVar("T")


class Verdict(StrEnum):
    """The verdict of a job."""

    #: One fused launch is ahead of every other kind by more than the tie band.
    FUSED_WINS = "fused wins"
    #: The best fused launch and the best other kind are within the tie band.
    TIE = "tie"
    #: Another kind is ahead of every fused launch by more than the tie band.
    DO_NOT_FUSE = "do not fuse"


@dataclass(frozen=True, kw_only=True)
class FinalRow:
    """The best candidate of one plan kind in the finals."""

    candidate: Candidate
    #: The trial that qualified it.
    trial_number: int
    #: Median over the rounds, microseconds; None if it failed in the finals.
    time_us: float | None
    #: Half the interquartile range divided by the median.
    spread: float | None
    #: Median over rounds of library time / this time.
    speedup: float | None
    #: 95 % confidence interval of `speedup`.
    speedup_ci95: tuple[float, float] | None
    #: Why there is no time; empty otherwise.
    reason: str = ""
    #: Millijoules per run under continuous load, for the whole card; None if not measured (yet).
    energy_mj: float | None = None
    #: Rounds that count, over both processes, and those dropped because of their clocks.
    num_rounds: int = 0
    num_dropped: int = 0


def least_energy_row(rows: Sequence[FinalRow], within_percent: float) -> int | None:
    """Index of the row with the least energy among those at most `within_percent` percent slower than the fastest;
    None if no such row has an energy."""
    times = [row.time_us for row in rows if row.time_us is not None]
    limit_us = (1 + within_percent / 100) * min(times, default=0.0)
    energies = {
        index: row.energy_mj
        for index, row in enumerate(rows)
        if row.energy_mj is not None and row.time_us is not None and row.time_us <= limit_us
    }
    return min(energies, key=energies.__getitem__, default=None)


def kernel_row(rows: Sequence[FinalRow], winner: PlanKind, energy_within_percent: float | None) -> FinalRow | None:
    """The finalist whose kernel belongs to a result: its files, its time and its gain belong together, wherever they
    are shown or delivered. It is the one with the least energy if that was requested and it is ours, otherwise the
    winner, or our fastest if the library won; None if no generated kernel has a time."""
    if energy_within_percent is not None:
        index = least_energy_row(rows, energy_within_percent)
        if index is not None and rows[index].candidate.plan_kind.is_ours:
            return rows[index]
    ours = [row for row in rows if row.time_us is not None and row.candidate.plan_kind.is_ours]
    return min(ours, key=lambda row: (row.candidate.plan_kind is not winner, row.time_us), default=None)


@dataclass(frozen=True, kw_only=True)
class PolicyTime:
    """The time of a policy's order with the kernel and the grid of a job's best fused schedule, with normal
    launches."""

    #: ``searched`` for the order of that schedule itself, otherwise the rule's name.
    policy: str
    #: The simulator's forecast, microseconds.
    forecast_us: float
    #: Median of the trial with this order, microseconds, and its number; None if there is none.
    measured_us: float | None
    trial_number: int | None


@dataclass(frozen=True, kw_only=True)
class Best:
    """The result of a job."""

    job_id: str
    verdict: Verdict
    #: The kind that won, ties broken towards the simpler: library, then our launches, then the fused ones.
    winner: PlanKind
    #: Relative distance below which two times are a tie.
    tie_band: float
    #: How the finals were held; None for a result of an older version.
    procedure: FinalsProcedure | None
    #: One row per finalist, library first.
    finals: tuple[FinalRow, ...]
    #: max(compulsory bytes / DRAM rate, FLOPs / tensor rate) of the target from the data sheet, microseconds.
    reference_us: float
    #: sha256 of the artifact's zip, hex: the winner's kernel, or our best one if the library won.
    artifact_digest: str | None
    environment: Environment
    #: The time of each policy; empty if no fused kernel was measured, and for a result of an older version.
    policies: tuple[PolicyTime, ...] = ()
    #: How the library was called in the finals; None if it is simulated, and for a result of an older version.
    library: LibraryRecipe | None = None
    #: PyTorch's time; None if it was not requested, for a simulated result, and for one of an older version.
    torch: TorchTime | None = None
    #: Times of a user's own programs, which were passed to `tuner.tune` in one process.
    baselines: tuple[BaselineTime, ...] = ()

    @property
    def winner_row(self) -> int | None:
        """Index in `finals` of the winning kind's fastest row; None if the kind has no row with a time."""
        times = {
            index: row.time_us
            for index, row in enumerate(self.finals)
            if row.candidate.plan_kind is self.winner and row.time_us is not None
        }
        return min(times, key=times.__getitem__, default=None)

    @property
    def torch_speedup(self) -> float | None:
        """PyTorch's time divided by the winner's; None if either is unknown."""
        if self.torch is None or self.winner_row is None:
            return None
        return self.torch.speedup_of(self.finals[self.winner_row].speedup)

    @property
    def sure_speedup(self) -> float:
        """The winner's minimum gain over the library, at 95 %; 1 if the library won. Results are ranked by it: few
        rounds, or a small budget, lead to a wide interval, so an unproven lead does not count."""
        if not self.winner.is_ours or self.winner_row is None:
            return 1.0
        row = self.finals[self.winner_row]
        return row.speedup_ci95[0] if row.speedup_ci95 else row.speedup or 1.0


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job and its state."""

    #: ``job-`` and 12 hex digits.
    id: str
    spec: JobSpec
    state: JobState
    #: Why it failed; empty otherwise.
    reason: str
    #: Seconds since the epoch.
    created_at: float
    started_at: float | None
    finished_at: float | None
    #: Recorded outcomes by kind: measured, rejected, failed.
    num_measured: int
    num_rejected: int
    num_failed: int
    #: Time of our fastest, by its speed-up, and of the library so far, microseconds.
    best_us: float | None
    library_us: float | None
    #: Seconds of search so far, including before restarts.
    search_s: float
    #: Seconds of search for which the card was busy with trials; None if an older version did not count them.
    card_s: float | None = 0.0
    #: Trials recorded since the last progress.
    since_progress: int = 0
    #: The library's time relative to our fastest: the median over their shared rounds.
    best_speedup: float | None = None
    #: Its owners, in order of their requests; empty if the service had no tokens.
    owners: tuple[str, ...] = ()
    #: -10 to 10; higher priorities go first.
    priority: int = 0
    #: Its project, and words for finding it.
    project: str = ""
    labels: tuple[str, ...] = ()
    #: When its search must end, seconds since the epoch; None for no deadline.
    deadline_at: float | None = None
    #: Whether an owner has paused it.
    is_paused: bool = False
    #: The batch that made it, and its progress with its ladder; None if it was submitted alone.
    batch_id: str | None = None
    batch_step: int | None = None

    @property
    def num_trials(self) -> int:
        """Recorded outcomes of any kind."""
        return self.num_measured + self.num_rejected + self.num_failed

    def eta_s(self, now: float) -> float | None:
        """Maximum remaining seconds of search, while it is searching: from the mean pace of trials, the budget's
        seconds, or the deadline. None before the first trial, in other states, and after a batch job's own trials:
        how many results of other jobs it will try is unknown. A search that runs out of patience ends sooner.
        `now` is in seconds since the epoch."""
        if self.state is not JobState.SEARCHING or self.num_trials == 0:
            return None
        if self.batch_id is not None and self.num_trials >= self.spec.budget.trials:
            return None
        return min(self.spec.budget.left_s(self.num_trials, self.search_s), self.due_s(now))

    def due_s(self, now: float) -> float:
        """Seconds until its search must end; infinite without a deadline."""
        return math.inf if self.deadline_at is None else max(0.0, self.deadline_at - now)

    @property
    def card_share(self) -> float | None:
        """Share of the search for which the card was busy; None if unknown."""
        return busy_share(self.card_s, self.search_s)


def busy_share(card_s: float | None, search_s: float) -> float | None:
    """Share of `search_s` seconds for which the card was busy; None if unknown, and before the search."""
    return None if card_s is None or not search_s else min(1.0, card_s / search_s)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of a job; ids increase within the database, so a stream can resume after any event."""

    id: int
    job_id: str
    #: ``state``, ``priors``, ``trial`` or ``best``.
    kind: str
    at: float
    data: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """One page of a listing."""

    items: Sequence[T]
    #: Opaque; None on the last page.
    next_cursor: str | None


class MatchKind(StrEnum):
    """How well a stored result fits the requested workload and target."""

    #: Same workload, objective and target, and no difference to the machine that will run it.
    EXACT = "exact"
    #: Same dtype, kind, activation and target; the nearest shape within a limit, or another objective, GPU, driver,
    #: CUDA or kernel version.
    NEAREST = "nearest"
    #: Any target, but never a simulated result for a real one, nor the reverse.
    ANY = "any"


@dataclass(frozen=True, kw_only=True)
class BestMatch:
    """A stored result found by workload and target."""

    best: Best
    job: JobRecord
    #: How well it fits.
    match: MatchKind
    #: What differs, as text; empty for exact.
    differences: tuple[str, ...]
    #: Distance from the requested shape: the sum of the factors between sizes, in powers of two.
    distance: float = 0.0


class InspectionKind(StrEnum):
    """What an inspection of a trial measures."""

    #: The energy per run of the candidate.
    ENERGY = "energy"
    #: Hardware counters of the candidate.
    COUNTERS = "counters"
    #: A trace from inside the kernel.
    TRACE = "trace"


class InspectionState(StrEnum):
    """The state of an inspection."""

    #: Requested; it is performed between two trials, or when the GPU is idle.
    PENDING = "pending"
    #: There is a result; for counters it may say why there are none.
    DONE = "done"
    #: The request is impossible: the record's `refusal` says what is expected.
    REFUSED = "refused"
    #: It failed; the record's `reason` says why.
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """An inspection of a recorded trial: the request, and later its result."""

    #: Number of the row.
    seq: int
    job_id: str
    trial_number: int
    kind: InspectionKind
    #: Counters by name; None for the base set.
    metrics: tuple[str, ...] | None
    state: InspectionState
    #: How often a worker has started it.
    num_attempts: int
    #: Why it failed, why its result is empty, or what it waits for; empty otherwise.
    reason: str
    #: Field, problem and remedy, if it was refused.
    refusal: tuple[str, str, str] | None
    #: The result's figures: the counters, or the shares of a trace; empty if there are none.
    figures: tuple[Metric, ...]
    #: Seconds since the epoch.
    asked_at: float
    finished_at: float | None
    #: Left out if a listing does not need it.
    result: CounterReport | EnergyReport | Trace | None = None


class WebhookState(StrEnum):
    """The state of a webhook."""

    #: The job has not ended.
    WAITING = "waiting"
    #: The job has ended, and the receiver has not accepted it yet.
    DUE = "due"
    DELIVERED = "delivered"
    #: The receiver did not accept it, and there are no further attempts; the record's `reason` says why.
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """An address that is notified when a job has ended."""

    #: Number of the row; it names the delivery.
    seq: int
    job_id: str
    #: Who requested it; empty if the service had no tokens.
    owner: str
    url: str
    #: The host, with its port if the URL has one.
    host: str
    state: WebhookState
    num_attempts: int
    #: When the next attempt is made, seconds since the epoch; None if there is none.
    due_at: float | None
    #: When it was accepted, or given up.
    ended_at: float | None
    #: Why the last attempt failed; empty otherwise.
    reason: str

    @property
    def delivery(self) -> str:
        """A name that all attempts share, so that a receiver can recognise repeated deliveries."""
        return f"hook-{self.seq}"
