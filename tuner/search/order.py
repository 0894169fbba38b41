"""What a search starts with, and how to run a search in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.space.joint import any_space_of
from tuner.core.trial.job import Trial
from tuner.search.meanwhile import Begin
from tuner.search.searcher import Searcher


@dataclass(frozen=True, kw_only=True)
class SearchOrder:
    """Everything that a search depends on. Equal orders give equal candidates, in any process."""

    workload: Workload
    gpu: Gpu
    #: The sampler's seed.
    seed: int
    #: The trials recorded so far, in order.
    history: tuple[Trial, ...] = ()
    #: Legal generated candidates that are tried first, after the library.
    priors: tuple[Candidate, ...] = ()
    #: The budget, if there is one.
    num_trials: int | None = None

    def begin(self, begin: Begin | None = None) -> Searcher:
        """The searcher, which starts background work with `begin`."""
        return Searcher(
            any_space_of(self.workload, self.gpu),
            seed=self.seed,
            history=self.history,
            priors=self.priors,
            num_trials=self.num_trials,
            begin=begin,
        )


@contextmanager
def search_here(order: SearchOrder) -> Iterator[Searcher]:
    """A search in this process."""
    yield order.begin()
