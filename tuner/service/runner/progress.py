"""Whether a search still makes progress, judged by its recorded trials."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.core.trial.job import Trial
from tuner.service.finals.finals import best_speedup

#: A trial is progress if it is faster than the last such trial by at least this relative amount; less is noise.
MIN_PROGRESS = 0.005


class Progress:
    """Counts our trials since the last progress."""

    def __init__(self, patience: int | None, past: Iterable[Trial]) -> None:
        """`past` are the trials recorded so far; if `patience` is None, there is no limit."""
        self._patience = patience
        self._best = 0.0
        #: Trials recorded since the last progress.
        self.num_since = 0
        #: Whether the patience has run out. Once true, it stays true: later results do not restart the search.
        self.is_over = False
        for trial in past:
            self.saw(trial)

    def saw(self, trial: Trial) -> None:
        """A trial was recorded. The library's trial is not part of the search."""
        if not trial.candidate.plan_kind.is_ours:
            return
        speedup = best_speedup([trial])
        if speedup is not None and speedup > self._best * (1 + MIN_PROGRESS):
            self._best, self.num_since = speedup, 0
        else:
            self.num_since += 1
        self.is_over |= self._patience is not None and self.num_since >= self._patience
