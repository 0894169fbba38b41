"""Data about all jobs: their verdicts, and the positions of open jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.priors import Found, KnownFinals, KnownWinners
from tuner.core.trial.records import Best, JobRecord, Page, Verdict
from tuner.service.paging import check_limit
from tuner.store import Store
from tuner.store.jobs import jobs, queue
from tuner.store.listings import entries
from tuner.store.listings.entries import Entry, Order
from tuner.store.results import bests


@dataclass(frozen=True, kw_only=True)
class Place:
    """Position of an open job."""

    #: Number of jobs ahead of it; None if it is not queued.
    position: int | None
    #: Estimated seconds until it ends; None if unknown.
    eta_s: float | None


class Overview:
    """Reads data for listings besides the jobs. Thread-safe."""

    def __init__(
        self,
        store: Store,
        winners: KnownWinners | None,
        num_cards: Callable[[str], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`num_cards` returns how many cards of a target can run jobs in parallel."""
        self._store = store
        self._num_cards = num_cards
        self._clock = clock
        self._winners = winners
        self._shipped: list[tuple[str, Found]] | None = None
        self._finals: dict[str, Mapping[str, KnownFinals]] = {}

    def shipped(self) -> list[tuple[str, Found]]:
        """(target, fastest winner) of each problem of the built-in winners."""
        if self._shipped is None:
            self._shipped = [] if self._winners is None else _fastest_of(self._winners)
        return self._shipped

    def shipped_finals(self, target_id: str) -> Mapping[str, KnownFinals]:
        """Results of finals on a target, by source, among the built-in winners."""
        if target_id not in self._finals:
            self._finals[target_id] = {} if self._winners is None else self._winners.finals(target_id)
        return self._finals[target_id]

    def shipped_targets(self) -> list[str]:
        """The targets of the built-in winners."""
        return list(dict.fromkeys(target_id for target_id, _ in self.shipped()))

    def results(self, job_ids: Collection[str]) -> dict[str, Best]:
        """The results of jobs, without jobs that have none."""
        with self._store.read() as session:
            return bests.of_jobs(session, job_ids)

    def verdicts(self, job_ids: Collection[str]) -> dict[str, tuple[Verdict, PlanKind]]:
        """The verdict and the winning kind of each job that has a result."""
        with self._store.read() as session:
            return bests.verdicts(session, job_ids)

    def entries(self, cursor: str | None, limit: int, order: Order, **chosen: Any) -> Page[Entry]:
        """Rows of jobs and batches; `chosen` is described in `tuner.store.jobs.jobs.JobFilter`.

        Raises:
            InvalidInput: the cursor belongs to another listing, or the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            return entries.page(session, cursor, limit, jobs.JobFilter(**chosen), order)

    def num_open(self) -> int:
        """Jobs that are queued or running."""
        with self._store.read() as session:
            counts = jobs.counts_by_state(session)
        return sum(count for (_, state), count in counts.items() if not JobState(state).is_final)

    def places(self, found: Sequence[JobRecord]) -> dict[str, Place]:
        """The positions of the open jobs among the given ones."""
        still_open = [job for job in found if not job.state.is_final]
        with self._store.read() as session:
            places = queue.places(session, still_open, self._num_cards, self._clock())
        return {job_id: Place(position=position, eta_s=eta_s) for job_id, (position, eta_s) in places.items()}


def _fastest_of(winners: KnownWinners) -> list[tuple[str, Found]]:
    found: dict[tuple[str, str], tuple[str, Found]] = {}
    for target_id in CATALOGUE:
        for one in winners.of(target_id):
            key = (target_id, one.source)
            if key not in found or one.time_us < found[key][1].time_us:
                found[key] = (target_id, one)
    return list(found.values())
