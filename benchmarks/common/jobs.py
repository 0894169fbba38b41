"""Jobs of a benchmark: the service in this process, over this machine's first card or a simulated one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.common.called import R
from benchmarks.common.program import in_time
from benchmarks.common.report import commit
from benchmarks.common.workbench import BUILD_CACHE, message_of
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.problem.workload import Workload
from tuner.core.trial.evaluator import Environment, Evaluator
from tuner.core.trial.job import Budget, JobSpec, JobState, Objective, Trial, default_regime
from tuner.core.trial.records import Best, JobRecord, Page
from tuner.dispatch import LocalDispatcher
from tuner.dispatch.factory import make_evaluators
from tuner.errors import TunerError
from tuner.search import SearchProcesses, search_here
from tuner.service import Service
from tuner.service.paging import MAX_PAGE
from tuner.service.runner.searching import Search
from tuner.store import Store
from tuner.winners import ShippedWinners

#: Folder of jobs, so that an interrupted run continues.
DATA = Path("build/bench-jobs")
#: Processes that search: one for the current job, and one in which the next one begins.
NUM_SEARCHES = 2
_POLL_S = 0.05
_SECONDS_PER_JOB = 120.0

T = TypeVar("T")


class JobError(TunerError):
    """A job of a benchmark has no result; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that succeeded."""

    job: JobRecord
    best: Best
    trials: list[Trial]


def spec_of(workload: Workload, target_id: str, trials: int) -> JobSpec:
    """The job of a workload, in the regime of its size."""
    return JobSpec(
        workload=workload,
        target_id=target_id,
        objective=Objective(regime=default_regime(workload)),
        budget=Budget(trials=trials, seconds=_SECONDS_PER_JOB),
        seed=0,
    )


class Jobs:
    """A service for jobs that are requested one by one. A job that an earlier run started, or finished, is not started
    again.
    """

    def __init__(self, service: Service, dispatcher: LocalDispatcher, target_id: str, environment: Environment) -> None:
        self.service = service
        self.dispatcher = dispatcher
        self.target_id = target_id
        self.environment = environment

    def drop_others(self, wanted: Collection[JobSpec]) -> None:
        """Ends the open jobs of earlier runs that are no longer needed."""
        for state in (JobState.QUEUED, JobState.SEARCHING, JobState.FINALS):
            for job in self._all(state):
                if job.spec not in wanted:
                    self.service.cancel(job.id)

    def begin(self, spec: JobSpec, *, anew: bool = False) -> JobRecord:
        """The job of `spec`: one that is open or has succeeded, or a new one if there is none or `anew` is set.

        Raises:
            JobError: a job with a different budget is open for the same problem.
        """
        if not anew:
            done = next((job for job in self._all(JobState.SUCCEEDED) if job.spec == spec), None)
            if done is not None:
                return done
        job, _ = self.service.submit(spec)
        if job.spec != spec:
            raise JobError(f"{job.id} is open for the same problem with a different budget or seed")
        return job

    def end(self, job: JobRecord) -> Ended:
        """Waits for a job.

        Raises:
            JobError: the job has not succeeded.
        """
        while not (job := self.service.job(job.id)).state.is_final:
            self.service.check_alive()
            time.sleep(_POLL_S)
        if job.state is not JobState.SUCCEEDED:
            raise JobError(f"{job.id} ended {job.state}: {job.reason}")
        return Ended(job=job, best=self.service.best(job.id), trials=all_trials(self.service, job.id))

    def _all(self, state: JobState) -> list[JobRecord]:
        return every_item(lambda cursor: self.service.jobs(state=state, limit=MAX_PAGE, cursor=cursor))


def all_trials(service: Service, job_id: str) -> list[Trial]:
    """Every recorded trial of a job, by number."""
    return every_item(lambda cursor: service.trials(job_id, limit=MAX_PAGE, cursor=cursor))


def every_item(page_at: Callable[[str | None], Page[T]]) -> list[T]:
    """The items of all pages of a listing."""
    page = page_at(None)
    found = list(page.items)
    while page.next_cursor is not None:
        page = page_at(page.next_cursor)
        found += page.items
    return found


class InTurn:
    """Runs jobs in sequence; the next one is submitted before the previous one ends, so that no card is idle."""

    def __init__(self, jobs: Jobs, specs: Sequence[JobSpec], *, anew: bool = False) -> None:
        """Ends the open jobs of earlier runs that are not in `specs`."""
        self._jobs, self._specs, self._anew = jobs, specs, anew
        self._begun: dict[int, JobRecord] = {}
        jobs.drop_others(specs)

    def end(self, i: int) -> Ended:
        """Waits until job `i` ends.

        Raises:
            TunerError: the job cannot be started, or has not succeeded.
        """
        self._begin(i)
        with suppress(TunerError):  # the job is submitted again later
            self._begin(i + 1)
        return self._jobs.end(self._begun[i])

    def _begin(self, i: int) -> None:
        if i < len(self._specs) and i not in self._begun:
            self._begun[i] = self._jobs.begin(self._specs[i], anew=self._anew)


def run_jobs(
    jobs: Jobs,
    specs: Sequence[tuple[R, JobSpec]],
    keep: Callable[[R, Ended], None],
    *,
    seconds: float,
    anew: bool = False,
) -> dict[str, str]:
    """Runs the job of each row until the time limit, and passes the ended job to `keep`; returns the names of the
    rows that failed, with their reasons."""
    failures, turns = dict[str, str](), InTurn(jobs, [spec for _, spec in specs], anew=anew)
    for number, (row, _) in enumerate(in_time(specs, seconds)):
        try:
            keep(row, turns.end(number))
        except Exception as error:  # whatever the error is, the other rows may succeed
            failures[row.name] = message_of(error)
            print(f"{row.name} FAILED: {failures[row.name]}", flush=True)
    return failures


@contextmanager
def open_jobs(
    gpu: str, *, winners: ShippedWinners, num_rounds: int | None = None, data: Path | None = None
) -> Iterator[Jobs]:
    """Jobs on this machine's first card, or a simulated one, chosen like `tuner serve --gpu`; searches are processes,
    as in the service.

    `num_rounds`: rounds of the finals in each process, if not the default; `data` is the folder of jobs, by default
    that of this commit.

    Raises:
        InvalidInput: `gpu` is not a valid choice.
    """
    evaluators, why = make_evaluators(gpu, build_cache=BUILD_CACHE)
    print(why, flush=True)
    for other in evaluators[1:]:
        other.close()
    processes = SearchProcesses(NUM_SEARCHES)
    with (
        closing(processes),
        jobs_over(evaluators[0], winners=winners, num_rounds=num_rounds, data=data, search=processes.search) as jobs,
    ):
        yield jobs


@contextmanager
def jobs_over(
    evaluator: Evaluator,
    *others: Evaluator,
    winners: ShippedWinners,
    num_rounds: int | None = None,
    data: Path | None = None,
    search: Search = search_here,
) -> Iterator[Jobs]:
    """Like `open_jobs`, with an evaluator and `others` of its target, which end with it; `search` starts a search,
    here or in another process."""
    target_id, environment = evaluator.target.id, evaluator.environment()
    folder = data or DATA / target_id.replace(":", "-") / commit()[:12]
    finals = FinalsProcedure(num_rounds=num_rounds or FinalsProcedure.num_rounds)
    dispatcher = LocalDispatcher([evaluator, *others])
    service = Service(Store.open(folder), dispatcher, finals=finals, winners=winners, search=search)
    with closing(service):
        service.start()
        yield Jobs(service, dispatcher, target_id, environment)
