"""A search over a chain with the toy tile op, for processes that have the toy."""

from __future__ import annotations

from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.space.space import space_of
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured, Outcome
from tuner.search.searcher import Searcher


def values_tried(workload: Workload, num_trials: int) -> set[int]:
    """The values of the toy's own axis tried until there are two, or in `num_trials` trials, whose times are the
    forecasts."""
    gpu = CATALOGUE["h200"]

    def judged(candidate: Candidate) -> Outcome:
        time_us = 50.0 if candidate.schedule is None else forecast_us(workload, gpu, candidate)
        return Measured(time_us=time_us, library_us=50, speedup=50 / time_us, spread=0, rounds=(), rel_error=0)

    searcher, found = Searcher(space_of(workload, gpu), seed=0), set[int]()
    for number in range(num_trials):
        if len(found) == 2 or (candidate := searcher.ask()) is None:
            break
        outcome = judged(candidate)
        searcher.tell(
            Trial(number=number, num_known=number, candidate=candidate, outcome=outcome, started_at=0, finished_at=0)
        )
        if candidate.schedule is not None:
            (own,) = [one for one in candidate.schedule.tiling.of_kinds if one is not None]
            found.add(own.rows_at_once)  # type: ignore[attr-defined]
    return found
