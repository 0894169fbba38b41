"""A batch: jobs that were submitted together. Those of one shape form a ladder, and share their results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from tuner.core.problem.workload import Workload
from tuner.core.trial.job import JobSpec, JobState
from tuner.core.trial.priors import octaves_of
from tuner.core.trial.records import busy_share

#: Maximum number of jobs in a batch.
MAX_JOBS = 1024
#: A job whose rows are farther than this distance, by `octaves_of`, from those of every earlier job of its ladder has
#: no neighbour to learn from.
NEIGHBOURHOOD = 2.0
#: Assumed seconds of a job's finals, until a job of its batch has had them.
FINALS_S = 2.0
#: A job with a neighbour gets one in `NEIGHBOUR_SHARE` trials of the budget, but at least `LEAST_TRIALS`.
NEIGHBOUR_SHARE = 3
LEAST_TRIALS = 10
#: Maximum number of the other jobs' results that a job of a ladder tries after its own trials, nearest rows first.
MOST_SHARED = 12


class BatchStep(IntEnum):
    """The state of a search whose job shares results with its ladder."""

    #: Its own trials are run.
    SEARCH = 0
    #: Then the results of the ladder's other jobs are tried, when all of them have searched.
    SHARE = 1
    #: Then come its finals, when all of them have shared.
    FINALS = 2


@dataclass(frozen=True, kw_only=True)
class BatchItem:
    """One job of a batch request."""

    spec: JobSpec
    #: Index of its ladder.
    ladder: int


@dataclass(frozen=True, kw_only=True)
class BatchSummary:
    """The jobs of a batch that match a filter."""

    id: str
    counts: dict[JobState, int]
    num_trials: int
    #: Total number of trials in all budgets.
    num_planned: int
    #: The smallest and the largest gain over the library; None before the first measured trial.
    speedups: tuple[float, float] | None
    #: The fewest and the most rows; None if the first op has none.
    rows: tuple[int, int] | None


def batch_name(workload: Workload, rows: tuple[int, int] | None, num_shapes: int = 1) -> str:
    """A name for a batch: one shape, its range of rows, and the number of other shapes."""
    others = f", and {num_shapes - 1} more" if num_shapes > 1 else ""
    if rows is None:
        return workload.describe() + others
    fewest, most = rows
    span = str(fewest) if fewest == most else f"{fewest}–{most}"
    return f"{workload.describe(with_rows=False)}, M {span}{others}"


def plan_batch(specs: Sequence[JobSpec], neighbour_trials: int | None = None) -> tuple[BatchItem, ...]:
    """The jobs of a batch in search order, ladder by ladder.

    A job without a neighbour in its ladder keeps its budget. The others get `neighbour_trials`, or a third by default:
    they start from what their neighbours found.
    """
    ladders: dict[str, list[JobSpec]] = {}
    for spec in specs:
        ladders.setdefault(_ladder_key(spec), []).append(spec)
    items = []
    for index, members in enumerate(ladders.values()):
        rows = [spec.workload.batch_size for spec in members]
        for place, has_neighbour in search_order(rows):
            spec = members[place]
            if has_neighbour:
                fewer = neighbour_trials or max(LEAST_TRIALS, spec.budget.trials // NEIGHBOUR_SHARE)
                spec = replace(spec, budget=replace(spec.budget, trials=min(fewer, spec.budget.trials)))
            items.append(BatchItem(spec=spec, ladder=index))
    return tuple(items)


def _ladder_key(spec: JobSpec) -> str:
    """Equal for specs that differ only in rows; a workload whose ops have different rows has its own ladder."""
    data = spec.workload.to_json()
    rows = {op.get("m") for op in data["ops"]}  # an attention has no rows, so each has its own ladder
    if len(rows) == 1 and None not in rows:
        for op in data["ops"]:
            del op["m"]
    return json.dumps([data, spec.target_id, str(spec.objective.l2)], sort_keys=True)


def search_order(rows: Sequence[int]) -> list[tuple[int, bool]]:
    """Each index of `rows` once, first the middle one, then always the one farthest from all before it; each with
    whether it has a neighbour among those before it."""
    left = sorted(range(len(rows)), key=lambda place: rows[place])
    if not left:
        return []
    order = [(left.pop(len(left) // 2), False)]
    away = {place: _octaves(rows[place], rows[order[0][0]]) for place in left}
    while away:
        place = max(away, key=away.__getitem__)
        order.append((place, away.pop(place) <= NEIGHBOURHOOD))
        away = {other: min(before, _octaves(rows[other], rows[place])) for other, before in away.items()}
    return order


def _octaves(one: int, other: int) -> float:
    return abs(octaves_of(one) - octaves_of(other))


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """A batch and its state."""

    #: ``batch-`` and 12 hex digits.
    id: str
    target_id: str
    #: Who submitted it; empty if the service had no tokens.
    owner: str
    project: str
    #: Seconds since the epoch.
    created_at: float
    #: When its owner cancelled it; None if it was not cancelled.
    cancelled_at: float | None
    #: Its jobs by state.
    counts: Mapping[JobState, int]
    #: Recorded trials, and their maximum: from the budgets, and what ladders share.
    num_trials: int
    num_planned: int
    #: Open jobs that an owner has paused.
    num_paused: int = 0
    #: Seconds of search of all its jobs.
    search_s: float
    #: Seconds of search for which the card was busy with trials; None if an older version did not count them.
    card_s: float | None = 0.0
    #: The number of its jobs whose finals have a known duration, and the sum of these durations.
    num_finals: int = 0
    finals_s: float = 0.0
    #: When the searches of all its open jobs must have ended, seconds since the epoch; None if one has no deadline.
    deadline_at: float | None = None
    #: The number of its ladders, and how many of them are finished or given up.
    num_ladders: int
    num_answered: int
    #: How many ladders have a result.
    num_succeeded: int

    @property
    def num_jobs(self) -> int:
        """Jobs in any state."""
        return sum(self.counts.values())

    @property
    def num_open(self) -> int:
        """Jobs that have not ended."""
        return sum(count for state, count in self.counts.items() if not state.is_final)

    @property
    def state(self) -> JobState:
        """Its state, from its jobs and ladders."""
        if self.cancelled_at is not None:
            return JobState.CANCELLED
        if self.num_open:
            if self.counts.get(JobState.QUEUED, 0) == self.num_jobs:
                return JobState.QUEUED
            waiting = self.counts.get(JobState.QUEUED, 0) + self.counts.get(JobState.SEARCHING, 0)
            return JobState.SEARCHING if waiting else JobState.FINALS
        if self.num_answered < self.num_ladders:
            return JobState.FINALS
        if self.num_succeeded:
            return JobState.SUCCEEDED
        return JobState.CANCELLED if self.counts.get(JobState.CANCELLED, 0) == self.num_jobs else JobState.FAILED

    def eta_s(self, num_cards: int, now: float) -> float | None:
        """Remaining seconds: those of search, at the pace so far or until its deadline, and those of the open jobs'
        finals at the pace so far, divided by the number of cards for its jobs. None before the first trial, and if no
        job is open or no card works. `now` is in seconds since the epoch."""
        num_at_work = min(num_cards, self.num_open)
        if not num_at_work or not self.num_trials:
            return None
        search_s = max(0.0, (self.num_planned - self.num_trials) * self.search_s / self.num_trials)
        finals_s = self.num_open * (self.finals_s / self.num_finals if self.num_finals else FINALS_S)
        due_s = math.inf if self.deadline_at is None else max(0.0, self.deadline_at - now)
        return min(search_s / num_at_work, due_s) + finals_s / num_at_work

    @property
    def card_share(self) -> float | None:
        """Share of the search for which the card was busy; None before the search, and if unknown."""
        return busy_share(self.card_s, self.search_s)
