"""The job loop of one target: ask, dispatch, record; then the finals and the artifact."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from tuner.core.insight.explain_job import best_fused
from tuner.core.insight.policy_times import policy_times
from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import Target
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.records import Best, JobRecord, PolicyTime
from tuner.dispatch import Dispatcher
from tuner.errors import Conflict, Quarantined, TunerError, WorkerError
from tuner.search import Searcher
from tuner.service.claims import Claims
from tuner.service.finals import Judgement, best_speedup, choose_finalists, judge
from tuner.service.forecasts import Forecaster, with_forecast
from tuner.service.inspector import Inspector, inspections_of, problem_of
from tuner.service.packing import pack_zip
from tuner.service.waiting import Stopped, result_of
from tuner.store import Store, bests, inspections, jobs, trials
from tuner.store.artifacts import register

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Pauses before a candidate is submitted again, where it is the worker that fails, seconds: it may be coming back.
#: After the last one the job fails.
RETRY_PAUSES_S = (0.5, 2.0)
#: Pauses before the probes of a card in quarantine, seconds; the last one again and again.
PROBE_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class JobFailed(TunerError):
    """The job ends without a result; the message is its reason."""


class Runner:
    """Works off the open jobs of one target, the oldest first, with one worker and in a thread of its own."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        target: Target,
        worker: int,
        claims: Claims,
        disk_limit_bytes: int,
        finals: FinalsProcedure,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`claims` is shared by the runners of a service; `finals` says how those of a job are held."""
        self.target = target
        self._worker = worker
        self._claims = claims
        self._store = store
        self._dispatcher = dispatcher
        self._disk_limit_bytes = disk_limit_bytes
        self._finals = finals
        self._clock = clock
        self._num_probes = 0
        self._stop = threading.Event()
        self._inspector = Inspector(store, dispatcher, target, worker, claims, self._stop, clock)
        self._forecaster = Forecaster(target.gpu)
        self._thread = threading.Thread(target=self._run, name=f"runner {target.id} {worker}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Has the thread end soon; a trial in flight is dropped, unrecorded."""
        self._stop.set()

    def join(self) -> None:
        """Waits for the thread's end."""
        if self._thread.ident is not None:
            self._thread.join()
        self._forecaster.close()

    def is_alive(self) -> bool:
        """Whether it still works."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._is_fit():
                    continue
                seen = self._store.num_writes
                is_busy = self._work_on_next() or self._inspector.take_one()
            except Quarantined as error:  # what was begun stays open, and goes on from its recorded trials
                _log.warning("%s is in quarantine: %s", self.target.id, error)
                continue
            except Exception:
                if self._stop.is_set():  # closing pulls the workers from under it: all goes on at the next start
                    return
                raise
            if not is_busy:
                # A write wakes it at once; the limit only bounds how long `stop` waits.
                self._store.wait_for_write(seen, 0.2)

    def _is_fit(self) -> bool:
        """Whether the card may be measured on; one in quarantine is probed, after a pause that grows."""
        if self._dispatcher.quarantine(self.target.id, self._worker) is None:
            self._num_probes = 0
            return True
        pause_s = PROBE_PAUSES_S[min(self._num_probes, len(PROBE_PAUSES_S) - 1)]
        self._num_probes += 1
        if self._stop.wait(pause_s):
            return False
        try:
            result_of(self._dispatcher.probe(self.target.id, self._worker), self._stop)
        except (Stopped, WorkerError) as error:
            _log.info("%s stays in quarantine: %s", self.target.id, error)
            return False
        _log.warning("%s is fit again", self.target.id)
        return True

    def _work_on_next(self) -> bool:
        """Works off one open job; whether there was one that no other runner has."""
        with self._claims.jobs.take(self._next_job) as job:
            if job is None:
                return False
            try:
                self._work(job)
            except Exception as error:
                if self._stop.is_set() or isinstance(error, Quarantined):
                    raise
                self._end(job.id, error)
            return True

    def _next_job(self, taken: Collection[str]) -> JobRecord | None:
        with self._store.read() as session:
            return jobs.next_open(session, self.target.id, besides=taken)

    def _end(self, job_id: str, error: Exception) -> None:
        """Ends a job that `error` stopped; the other jobs go on."""
        match error:
            case Conflict() if self._is_final(job_id):
                _log.info("%s was ended by a client", job_id)
                return
            case JobFailed() | WorkerError():
                reason = str(error)
            case _:
                _log.error("%s failed", job_id, exc_info=error)
                reason = f"a fault of the service: {type(error).__name__}: {error}"
        try:
            self._step(job_id, JobState.FAILED, reason)
        except Conflict:
            _log.info("%s was ended by a client before it failed: %s", job_id, reason)

    def _is_final(self, job_id: str) -> bool:
        with self._store.read() as session:
            return jobs.get(session, job_id).state.is_final

    def _step(self, job_id: str, state: JobState, reason: str = "") -> JobRecord:
        with self._store.write() as session:
            return jobs.set_state(session, job_id, state, self._clock(), reason)

    def _work(self, job: JobRecord) -> None:
        """Takes an open job from whatever state it is in to its end."""
        if job.state is JobState.QUEUED:
            job = self._step(job.id, JobState.SEARCHING)
        if job.state is JobState.SEARCHING:
            self._search(job)
            job = self._step(job.id, JobState.FINALS)
        self._finish(job)

    def _history(self, job_id: str) -> list[Trial]:
        with self._store.read() as session:
            return trials.history(session, job_id)

    def _search(self, job: JobRecord) -> None:
        """Asks and records until the budget is spent or nothing legal is left to try."""
        spec, problem = job.spec, problem_of(job)
        past = self._history(job.id)
        searcher = Searcher(
            Space(spec.workload, self.target.gpu), seed=spec.seed, history=past, num_trials=spec.budget.trials
        )
        search_s, mark = job.search_s, time.monotonic()
        incumbent = best_speedup(past)
        for number in range(len(past), spec.budget.trials):
            candidate = searcher.ask() if search_s < spec.budget.seconds else None
            if candidate is None:
                return
            started_at = self._clock()
            forecast = self._forecaster.begin(spec.workload, candidate)
            measured = self._await(self._at(self._dispatcher.evaluate, problem, candidate, incumbent))
            outcome = with_forecast(measured, forecast.result())
            trial = Trial(
                number=number, candidate=candidate, outcome=outcome, started_at=started_at, finished_at=self._clock()
            )
            now = time.monotonic()
            with self._store.write() as session:
                trials.record(session, job.id, trial, now - mark)
            search_s += now - mark
            searcher.tell(trial)
            incumbent = best_speedup([trial], incumbent)
            self._inspector.take_one(urgent_only=True)  # not more than one, so that the search goes on
            mark = time.monotonic()

    def _at(self, submit: Callable[..., Future[T]], *arguments: object) -> Callable[[], Future[T]]:
        """`submit` bound to this runner's worker."""
        return partial(submit, self.target.id, *arguments, worker=self._worker)

    def _await(self, submit: Callable[[], Future[T]]) -> T:
        """The result of what `submit` sends, sent again where the worker failed, a bounded number of times.

        Raises:
            JobFailed: the worker failed each time.
            Quarantined: the card is not fit; the job goes on when it is.
        """
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                return result_of(submit(), self._stop)
            except Quarantined:
                raise
            except WorkerError as error:
                if pause_s is None:
                    raise JobFailed(
                        f"the worker of {self.target.id} failed {1 + len(RETRY_PAUSES_S)} times: {error}"
                    ) from error
                _log.warning("the worker of %s failed, it is tried again: %s", self.target.id, error)
                self._stop.wait(pause_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _finish(self, job: JobRecord) -> None:
        """Measures the finalists against each other, keeps the winner's files and the result."""
        past, problem = self._history(job.id), problem_of(job)
        finalists = choose_finalists(past)
        if not finalists or finalists[0].candidate.plan_kind.is_ours:
            raise JobFailed(f"there is nothing to compare with: {_library_reason(past)}")
        candidates = tuple(trial.candidate for trial in finalists)
        times = self._await(self._at(self._dispatcher.finals, problem, candidates, self._finals.num_rounds))
        if times.times_us[0] is None:
            raise JobFailed(f"the library failed in the finals: {times.reasons[0]}")
        judgement = judge(finalists, times, self._finals)
        environment = self._dispatcher.environment(self.target.id, self._worker)
        content = self._pack(job, problem, judgement)
        digest = self._store.artifacts.put(content) if content else None
        best = Best(
            job_id=job.id,
            verdict=judgement.verdict,
            winner=judgement.winner,
            tie_band=judgement.tie_band,
            procedure=judgement.procedure,
            finals=judgement.rows,
            reference_us=reference_us(job.spec.workload, self.target.gpu),
            artifact_digest=digest,
            environment=environment,
            policies=self._policies(job, judgement, past),
        )
        with self._store.write() as session:
            if content and digest:
                register(session, digest, len(content), self._clock())
            bests.insert(session, best)
            jobs.set_state(session, job.id, JobState.SUCCEEDED, self._clock())
            for number, kind in inspections_of(judgement.rows):
                inspections.ask(session, job.id, number, kind, None, is_urgent=False, now=self._clock())
        self._store.collect_garbage(self._disk_limit_bytes)

    def _policies(self, job: JobRecord, judgement: Judgement, past: list[Trial]) -> tuple[PolicyTime, ...]:
        """What each policy would have reached with the kernel of the best fused finalist, if there is one."""
        row = best_fused(judgement.rows)
        if row is None or row.candidate.schedule is None:
            return ()
        return policy_times(job.spec.workload, self.target.gpu, row.candidate.schedule, past)

    def _pack(self, job: JobRecord, problem: Problem, judgement: Judgement) -> bytes | None:
        """The zip of the best kernel of ours, whatever won; None where none of ours came through."""
        row = judgement.kernel
        if row is None:
            return None
        extra = {"job_id": job.id, "result": judgement.to_json(), "spec": job.spec.to_json()}
        files = self._await(self._at(self._dispatcher.artifact, problem, row.candidate, extra))
        return pack_zip(files.files)


def _library_reason(past: list[Trial]) -> str:
    """Why no trial measured the library."""
    for trial in past:
        if not trial.candidate.plan_kind.is_ours:
            return f"the library's trial ended with {getattr(trial.outcome, 'reason', 'no time')}"
    return "the budget ended before the library's trial"
