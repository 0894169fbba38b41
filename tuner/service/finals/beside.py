"""A user's own programs, timed with the finalists of a job that has a result, and stored with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.trial.records import Best
from tuner.core.trial.reports.baselines import Baseline, BaselineTime
from tuner.dispatch import Dispatcher
from tuner.errors import NotFound, WorkerError
from tuner.service.inspections import problem_of
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.results import bests


def time_beside(store: Store, dispatcher: Dispatcher, job_id: str, baselines: Sequence[Baseline]) -> Best:
    """The job's result with the times of the programs in `baselines`, which replace earlier times. If a program or the
    card fails, the reason is stored instead.

    Raises:
        NotFound: no such job, or it has no result.
    """
    with store.read() as session:
        job, best = jobs.get(session, job_id), bests.find(session, job_id)
    if best is None or best.winner_row is None:
        raise NotFound(f"{job_id} has no result to compare programs with")
    timed = [index for index, row in enumerate(best.finals) if row.time_us is not None]
    candidates = tuple(best.finals[index].candidate for index in timed)
    rounds = (best.procedure or FinalsProcedure()).rounds_in(job.spec.objective.regime)
    try:
        lane = dispatcher.lane(job.spec.target_id)
        asked = lane.beside(problem_of(job), candidates, tuple(baselines), rounds, timed.index(best.winner_row))
        times = asked.result()
    except (WorkerError, NotFound) as error:
        times = tuple(BaselineTime(name=one.name, reason=str(error)) for one in baselines)
    with store.write() as session:
        bests.put_baselines(session, job_id, times)
    return replace(best, baselines=times)
