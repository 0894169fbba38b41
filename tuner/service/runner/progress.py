"""Whether a search still makes progress: arithmetic on its recorded trials."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.core.trial.job import Trial
from tuner.service.finals.finals import best_speedup

#: A trial is progress where it is faster than the last one that was, by this much, relative. Less is noise.
MIN_PROGRESS = 0.005


class Progress:
    """Counts our trials since the last one that was progress."""

    def __init__(self, patience: int | None, past: Iterable[Trial]) -> None:
        """`past` are the trials that are recorded already; without a `patience` it never runs out."""
        self._patience = patience
        self._best = 0.0
        #: Trials recorded since the last one that was progress.
        self.num_since = 0
        #: Whether the patience ran out. It stays so: what the last trials bring begins no new search.
        self.is_over = False
        for trial in past:
            self.saw(trial)

    def saw(self, trial: Trial) -> None:
        """A trial was recorded. The library's is no try of the search."""
        if not trial.candidate.plan_kind.is_ours:
            return
        speedup = best_speedup([trial])
        if speedup is not None and speedup > self._best * (1 + MIN_PROGRESS):
            self._best, self.num_since = speedup, 0
        else:
            self.num_since += 1
        self.is_over |= self._patience is not None and self.num_since >= self._patience
