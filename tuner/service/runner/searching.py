"""How a job's search starts, and how it restarts after its process has died."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Trial
from tuner.core.trial.priors import Prior
from tuner.core.trial.records import JobRecord
from tuner.errors import SearchLost
from tuner.search import SearchOrder
from tuner.service.concurrency.waiting import JobFailed
from tuner.service.runner.pipeline import Chooser

_log = logging.getLogger(__name__)

#: Number of times that a job's search may be lost without a recorded trial in between; then the job fails, since it may
#: be the cause.
MOST_LOST = 5


class BegunSearch(Chooser, Protocol):
    """A search before its first choice, with the interface of `Searcher`."""

    def foresee(self) -> Candidate | None:
        """Its most likely first candidates, one by one; None at the end."""
        ...

    def begin_with(self, priors: Sequence[Candidate]) -> None:
        """Makes the search try `priors` first, instead of its initial ones."""
        ...


#: Starts a search, which ends with the block.
Search = Callable[[SearchOrder], AbstractContextManager[BegunSearch]]


def order_of(job: JobRecord, gpu: Gpu, past: Iterable[Trial], priors: Iterable[Prior]) -> SearchOrder:
    """What a job's search starts with, given its recorded trials."""
    return SearchOrder(
        workload=job.spec.workload,
        gpu=gpu,
        seed=job.spec.seed,
        history=tuple(past),
        priors=tuple(prior.candidate for prior in priors),
        num_trials=job.spec.budget.trials,
    )


class LostSearches:
    """Counts the lost searches of one runner since its last recorded trial."""

    def __init__(self) -> None:
        self._num = 0

    def recorded(self) -> None:
        """A trial was recorded: the search continues."""
        self._num = 0

    def saw(self, job_id: str, error: SearchLost) -> JobFailed | None:
        """Counts a lost search; returns the reason to end the job if there were too many."""
        self._num += 1
        if self._num < MOST_LOST:
            _log.warning("the search of %s was lost, and restarts from the recorded trials: %s", job_id, error)
            return None
        self._num = 0
        return JobFailed(f"its search was lost {MOST_LOST} times in a row: {error}")
