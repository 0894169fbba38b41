"""The job loop of one worker: records outcomes from the pipeline, then holds the finals."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from tuner.core.problem.gpu import Target
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.problem.op_kinds import culprit, usable_kinds
from tuner.core.space.joint import any_space_of
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.ladders.batch import BatchStep
from tuner.core.trial.priors import KnownWinners, Prior
from tuner.core.trial.records import JobRecord
from tuner.dispatch import Dispatcher, MeasureLane
from tuner.dispatch.sources import kernel_version_for
from tuner.errors import Conflict, IllegalSchedule, NotFound, Quarantined, SearchLost, StoreUnavailable, WorkerError
from tuner.logs import about
from tuner.search import search_here
from tuner.service.concurrency.claims import Claims
from tuner.service.concurrency.clock_steps import ClockSteps
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.service.concurrency.waiting import GaveWay, JobFailed, Stopped
from tuner.service.finals.finals import best_speedup
from tuner.service.finals.finisher import Finisher
from tuner.service.inspections import Inspector, problem_of
from tuner.service.ladders.ladder_jobs import GivenCandidates, LadderJobs, given_to, new_kernels
from tuner.service.ladders.maker import LadderMaker
from tuner.service.metrics import Metrics, Observer
from tuner.service.runner.ahead import Ahead
from tuner.service.runner.helpers import Helpers, Lanes
from tuner.service.runner.pipeline import Chooser, Pipeline, end_if_due
from tuner.service.runner.prefetch import NextJob, Prefetch, next_job
from tuner.service.runner.priors import PriorBook
from tuner.service.runner.probing import Probing
from tuner.service.runner.progress import Progress
from tuner.service.runner.searching import LostSearches, Search, order_of
from tuner.service.runner.turns import Turn
from tuner.service.runner.watched_lane import WatchedLane
from tuner.store import Store
from tuner.store.jobs import batches, jobs, queue, served
from tuner.store.trials import trials

_log = logging.getLogger(__name__)

#: Polling interval of an idle runner if no write wakes it, seconds. Polling takes milliseconds of the interpreter, and
#: there is a runner for each card.
_ASK_AGAIN_S = 1.0


class Runner:
    """Processes the open jobs of one target, oldest first, with one worker and in its own thread."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        target: Target,
        worker: int,
        claims: Claims,
        disk_limit_bytes: int,
        finals: FinalsProcedure,
        max_ahead: int | None = None,
        winners: KnownWinners | None = None,
        clock: Callable[[], float] = time.time,
        *,
        metrics: Metrics,
        clock_steps: ClockSteps,
        observers: Sequence[Observer] = (),
        search: Search = search_here,
        helpers: Helpers | None = None,
    ) -> None:
        """Runners of a service share `claims`, `helpers` and `clock_steps`; `finals` is the procedure of finals. Jobs
        start from fitting `winners`; at most `max_ahead` + 1 candidates are in progress."""
        self.target = target
        self._worker = worker
        self._claims = claims
        self._helpers = helpers or Helpers()
        self._store = store
        self._dispatcher = dispatcher
        self._max_ahead = max_ahead
        self._metrics = metrics
        self._observers = (metrics, *observers)
        self._lane = WatchedLane(dispatcher.lane(target.id, worker), worker, metrics.busy_clock(target.id, worker))
        self._clock = clock
        self._clock_steps = clock_steps
        self._prefetch = Prefetch(search, lambda: dispatcher.builds(target.id, worker), f"{target.id} {worker}")
        self._lost = LostSearches()
        self._num_failures = 0
        #: The error that ended the thread; empty otherwise.
        self.fault = ""
        self._stop = threading.Event()
        #: Set if the runner should end when the candidate on the card has its outcome.
        self._drain = threading.Event()
        self._is_working = False
        self._probing = Probing(dispatcher, self._lane, worker, self._stop)
        self._writer = RetryingWriter(store, self._stop)
        self._inspector = Inspector(store, self._lane, target, claims, self._writer, self._stop, clock)
        self._finisher = Finisher(store, self._writer, self._lane, finals, disk_limit_bytes, self._stop, clock)
        self._priors = PriorBook(store, self._writer, winners, clock)
        self._ladder_jobs = LadderJobs(store)
        self._ladders = LadderMaker(store, self._lane, target, claims, self._writer, self._stop, clock)
        self._thread = threading.Thread(target=self._run, name=f"runner {target.id} {worker}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Makes the thread end soon; a trial in progress is dropped, unrecorded."""
        self._stop.set()

    def drain(self) -> None:
        """Makes the thread end after the current trial or finals; the job continues at the next start."""
        self._drain.set()
        if not self._is_working:
            self._stop.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until the thread has ended, with a time limit."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def join(self) -> None:
        """Waits until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def is_alive(self) -> bool:
        """Whether it is still running."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> str:
        """Why it waits for the database; empty if it does not."""
        return self._writer.trouble

    def _run(self) -> None:
        try:
            targets = self._dispatcher.targets
            self._writer.write(lambda session: served.note(session, targets), brings_work=False)
            while not self._stop.is_set() and not self._drain.is_set():
                self._turn()
        except Exception as error:
            if self._stop.is_set() or isinstance(error, Stopped):
                return  # the workers are stopped while closing; everything continues at the next start
            self.fault = f"{type(error).__name__}: {error}"
            _log.critical("the runner of %s has stopped; restart the server", self.target.id, exc_info=error)
        finally:
            self._helpers.withdraw(self._lane)
            self._prefetch.close()

    def _turn(self) -> None:
        """Processes a ladder whose jobs have ended, a job, or an inspection, or waits briefly for one of these."""
        try:
            if not self._probing.is_fit():
                self._helpers.withdraw(self._lane)
                return
            seen = self._store.commits.num_works
            is_busy = self._ladders.take_one() or self._work_on_next() or self._inspector.take_one()
        except Quarantined as error:  # a started job stays open, and continues from its recorded trials
            self._helpers.withdraw(self._lane)
            _log.warning("%s is in quarantine: %s", self.target.id, error)
            self._metrics.saw_quarantine(self.target.id, self._worker)
            return
        except StoreUnavailable as error:  # the worker is in quarantine here, too
            self._num_failures += 1
            self._writer.wait_after(error, self._num_failures)
            return
        self._num_failures = 0
        self._writer.is_well()
        if is_busy:
            self._helpers.withdraw(self._lane)
        else:
            self._helpers.lend(self._lane)
            self._rest(seen)

    def _rest(self, seen: int) -> None:
        """Waits for a write that may create work. Other runners may also release work without a write."""
        end = time.monotonic() + _ASK_AGAIN_S
        while not (self._stop.is_set() or self._drain.is_set()) and time.monotonic() < end:
            # A write wakes the runner immediately; the limit only bounds how long `stop` waits.
            if self._store.commits.wait_for_work(seen, 0.2) != seen:
                return

    def _work_on_next(self) -> bool:
        """Works on one open job; returns whether there was one without a runner."""
        with self._claims.jobs.take(self._next_job) as job:
            if job is None:
                return False
            self._helpers.withdraw(self._lane)
            try:
                self._is_working = True
                with about(job_id=job.id):
                    self._work(job)
            except GaveWay:
                _log.info("%s gives way", job.id)
            except SearchLost as error:  # candidates in progress are chosen again
                if self._stop.is_set():
                    raise
                if (failure := self._lost.saw(job.id, error)) is not None:
                    self._end(job.id, failure)
            except Exception as error:
                if self._stop.is_set() or isinstance(error, Stopped | Quarantined | StoreUnavailable):
                    raise
                self._end(job.id, error)
            finally:
                self._is_working = False
            return True

    def _next_job(self, taken: Collection[str]) -> JobRecord | None:
        self._clock_steps.follow()
        with self._store.read() as session:
            kinds = usable_kinds(self._lane.kinds)
            return queue.next_open(session, self.target.id, self._clock(), besides=taken, kinds=kinds)

    def _end(self, job_id: str, error: Exception) -> None:
        """Ends a job that failed with `error`; the other jobs continue."""
        match error:
            case Conflict() | NotFound() if self._has_ended(job_id):
                _log.info("%s was cancelled by a client", job_id)
                return
            case JobFailed() | WorkerError() | IllegalSchedule():
                reason = str(error)
            case _:
                _log.error("%s failed", job_id, exc_info=error)
                reason = f"an error in {culprit(error)}: {type(error).__name__}: {error}"
        try:
            self._step(job_id, JobState.FAILED, reason)
        except (Conflict, NotFound):
            _log.info("%s was cancelled by a client before it failed: %s", job_id, reason)

    def _has_ended(self, job_id: str) -> bool:
        """Whether the job was ended or deleted in the meantime."""
        with self._store.read() as session:
            try:
                return jobs.get(session, job_id).state.is_final
            except NotFound:
                return True

    def _step(self, job_id: str, state: JobState, reason: str = "") -> JobRecord:
        now = self._clock()
        _log.info("%s is %s%s", job_id, state, f": {reason}" if reason else "")
        return self._writer.write(lambda session: jobs.set_state(session, job_id, state, now, reason))

    def _work(self, job: JobRecord) -> None:
        """Processes an open job from its current state to its end."""
        if job.state is JobState.QUEUED:
            if job.deadline_at is not None and job.deadline_at <= self._clock():
                raise JobFailed("its deadline passed while it waited")
            job = self._step(job.id, JobState.SEARCHING)
        if job.state is JobState.SEARCHING:
            if not job.batch_step:
                self._search(job)
            self._share(job)
            job = self._step(job.id, JobState.FINALS)
        past = self._history(job.id)
        self._finisher.finish(job, past, self._ladder_jobs.finalists(job, past))

    def _share(self, job: JobRecord) -> None:
        """Tries the results of the ladder's other jobs, once all of these have searched.

        Raises:
            GaveWay: the job has to wait for them.
        """
        if job.batch_step is None:
            return
        if job.batch_step == BatchStep.SEARCH:
            job = self._advance(job, BatchStep.SHARE)
        if job.batch_step == BatchStep.SHARE:
            if self._ladder_jobs.are_behind(job):
                raise GaveWay
            past, space = self._history(job.id), any_space_of(job.spec.workload, self.target.gpu)
            to_try = self._ladder_jobs.to_try(job, space, past)
            self._record_all(job, GivenCandidates(to_try), past, num_trials=len(past) + len(to_try), left_s=math.inf)
            job = self._advance(job, BatchStep.FINALS)
        if self._ladder_jobs.are_behind(job):
            raise GaveWay

    def _advance(self, job: JobRecord, step: BatchStep) -> JobRecord:
        return self._writer.write(lambda session: batches.advance(session, job.id, step))

    def _history(self, job_id: str) -> list[Trial]:
        with self._store.read() as session:
            return trials.history(session, job_id)

    def _search(self, job: JobRecord) -> None:
        """Records the pipeline's outcomes until the budget is spent or no legal candidate is left."""
        past, budget = self._history(job.id), job.spec.budget
        due_s = job.due_s(self._clock())
        left_s = min(budget.seconds - job.search_s, due_s)
        if job.spec.tried:
            self._record_all(job, given_to(job, past), past, num_trials=budget.trials, left_s=left_s)
            return
        space = any_space_of(job.spec.workload, self.target.gpu)
        priors = self._priors.of(job, space, past, kernel_version_for(self._lane.environment(), job.spec.workload))
        with self._prefetch.search(order_of(job, self.target.gpu, past, priors)) as searcher:
            self._prefetch.begin(partial(self._next_to_search, job.id))
            self._record_all(
                job, searcher, past, num_trials=budget.trials, left_s=left_s, patience=budget.patience, priors=priors
            )
        if job.batch_step is not None:
            self._prefetch.build(problem_of(job), new_kernels(space, self._history(job.id)))

    def _next_to_search(self, job_id: str) -> NextJob | None:
        """The job that will most likely be searched next, if it has not started yet."""
        job = self._next_job({*self._claims.jobs.besides(job_id), job_id})
        if job is None or job.state is not JobState.QUEUED or job.spec.tried:
            return None
        return next_job(job, self.target.gpu, self._priors, self._lane.environment())

    def _record_all(
        self,
        job: JobRecord,
        chooser: Chooser,
        past: list[Trial],
        *,
        num_trials: int,
        left_s: float,
        patience: int | None = None,
        priors: Sequence[Prior] = (),
    ) -> None:
        """Records outcomes of candidates from `chooser`, until there are `num_trials` trials or time runs out.

        Raises:
            GaveWay: another job got its turn first.
        """
        turn, gives_way = Turn(self._store, self._claims, job, self._clock, usable_kinds(self._lane.kinds)), False
        number, incumbent, progress = len(past), best_speedup(past), Progress(patience, past)
        index_of = {prior.candidate: index for index, prior in enumerate(priors)}
        with (
            self._helpers.for_job(job.id, self._lane) as helpers,
            self._pipeline(job, chooser, past, num_trials, helpers) as pipeline,
        ):
            mark = time.monotonic()
            end_if_due(pipeline, progress, left_s)
            while (arrival := pipeline.next(incumbent)) is not None:
                trial = Trial(
                    number=number,
                    candidate=arrival.candidate,
                    outcome=arrival.outcome,
                    num_known=arrival.num_known,
                    started_at=arrival.chosen_at,
                    finished_at=self._clock(),
                    prior=index_of.get(arrival.candidate),
                )
                spent_s = time.monotonic() - mark
                progress.saw(trial)
                record = partial(trials.record, job_id=job.id, trial=trial, search_s=spent_s, card_s=arrival.card_s)
                self._writer.write(partial(record, since_progress=progress.num_since), brings_work=False)
                left_s -= spent_s
                self._lost.recorded()
                self._tell(job.id, trial, arrival.lane)
                number += 1
                pipeline.record(trial)
                incumbent = best_speedup([trial], incumbent)
                # Once the search's patience has run out, only a few last trials are left, which take less time than
                # another turn would cost.
                gives_way = gives_way or (not progress.is_over and turn.is_over())
                end_if_due(pipeline, progress, 0.0 if gives_way else left_s)
                if not self._drain.is_set():
                    self._inspector.take_one(urgent_only=True)  # at most one, so that the search continues
                mark = time.monotonic()
        if self._drain.is_set():
            raise Stopped
        if gives_way and left_s > 0 and number < num_trials:
            raise GaveWay

    def _tell(self, job_id: str, trial: Trial, lane: MeasureLane | None) -> None:
        """Reports a recorded trial and its card to the metrics; without `lane`, this runner's card."""
        worker = lane.worker if isinstance(lane, WatchedLane) else self._worker
        with about(trial_number=str(trial.number)):
            _log.debug("trial %d is %s", trial.number, type(trial.outcome).__name__.lower())
        for observer in self._observers:
            observer.saw_trial(job_id, self.target.id, worker, trial)

    def _pipeline(
        self, job: JobRecord, chooser: Chooser, past: list[Trial], num_trials: int, helpers: Lanes
    ) -> Pipeline:
        """The pipeline for the candidates that are still to be tried."""
        builds = self._dispatcher.builds(self.target.id, self._worker)
        return Pipeline(
            chooser,
            problem_of(job),
            builds,
            self._lane,
            Ahead(num_places=builds.num_places, num_trials=num_trials, max_ahead=self._max_ahead),
            num_known=len(past),
            num_trials=num_trials,
            stop=self._stop,
            drain=self._drain,
            helpers=helpers,
            clock=self._clock,
        )
