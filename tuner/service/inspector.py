"""Closer looks at trials: which a runner takes, and what becomes of them. A look never harms the job that it is at."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from tuner.core.insight.derived_counters import with_derived
from tuner.core.insight.tracing import trace_metrics
from tuner.core.problem.gpu import Target
from tuner.core.schedule.candidate import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.inspection import CounterReport, Trace
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured, Metric
from tuner.core.trial.records import FinalRow, Inspection, InspectionKind, JobRecord
from tuner.dispatch import Dispatcher
from tuner.errors import InvalidInput, Quarantined, TunerError, WorkerError
from tuner.service.claims import Claims
from tuner.service.waiting import Stopped, result_of
from tuner.store import Store, inspections, jobs, trials

_log = logging.getLogger(__name__)

#: Pause after an attempt at which the worker failed, seconds; it may be coming back.
RETRY_PAUSE_S = 0.5


def problem_of(job: JobRecord) -> Problem:
    """What all candidates of `job` share."""
    return Problem(workload=job.spec.workload, objective=job.spec.objective, seed=job.spec.seed)


def check_look(trial: Trial, kind: InspectionKind) -> None:
    """Refuses a look at what does not run.

    Raises:
        InvalidInput: the trial was not measured, or has no kernel of ours to trace.
    """
    if not isinstance(trial.outcome, Measured):
        ended = type(trial.outcome).__name__.lower()
        raise InvalidInput(
            "number",
            f"trial {trial.number} was {ended}, not measured: {trial.outcome.reason}",
            "give one of `GET /jobs/{job_id}/trials?outcome=measured`",
        )
    if kind is InspectionKind.TRACE and not trial.candidate.plan_kind.is_ours:
        raise InvalidInput(
            "number",
            f"trial {trial.number} is of kind {trial.candidate.plan_kind}, whose kernels leave no trace",
            "give a trial of ours, e.g. one of `GET /jobs/{job_id}/trials?plan_kind=fused&outcome=measured`",
        )


def looks_at(rows: Iterable[FinalRow]) -> list[tuple[int, InspectionKind]]:
    """What is asked of a job's finalists, by trial number: counters of each plan kind's best, traces of ours."""
    best = dict[PlanKind, FinalRow]()
    for row in sorted((row for row in rows if row.time_us is not None), key=lambda row: row.time_us or 0.0):
        best.setdefault(row.candidate.plan_kind, row)
    return [
        (row.trial_number, look)
        for kind, row in best.items()
        for look in InspectionKind
        if kind.is_ours or look is InspectionKind.COUNTERS
    ]


class Inspector:
    """Takes the closer looks of one target, one at a time, in the thread of its runner."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        target: Target,
        worker: int,
        claims: Claims,
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._target = target
        self._worker = worker
        self._claims = claims
        self._stop = stop
        self._clock = clock

    def take_one(self, *, urgent_only: bool = False) -> bool:
        """Takes a look that is pending, if there is one; whether there was.

        Raises:
            Stopped: the service is closing; the look stays pending.
            Quarantined: the card is not fit; the look stays pending too.
        """

        def choose(taken: Collection[int]) -> Inspection | None:
            with self._store.read() as session:
                return inspections.next_pending(session, self._target.id, urgent_only=urgent_only, besides=taken)

        with self._claims.looks.take(choose) as look:
            if look is not None:
                self._take(look)
            return look is not None

    def _take(self, look: Inspection) -> None:
        if look.num_attempts >= inspections.MAX_ATTEMPTS:
            self._fail(look, f"the service ended {look.num_attempts} times while it was taken")
            return
        with self._store.write() as session:
            inspections.begin(session, look.seq)
            job, trial = jobs.get(session, look.job_id), trials.get(session, look.job_id, look.trial_number)
        try:
            result = self._look(look, problem_of(job), trial)
        except (Stopped, Quarantined):
            with self._store.write() as session:
                inspections.put_back(session, look.seq)
            raise
        except Exception as error:
            self._end(look, error)
        else:
            with self._store.write() as session:
                inspections.finish(session, look.seq, result, figures_of(result), self._clock())

    def _look(self, look: Inspection, problem: Problem, trial: Trial) -> CounterReport | Trace:
        """The result; figures that take a time in take the trial's own, measured without a profiler."""
        at = self._target.id, problem, trial.candidate
        if look.kind is InspectionKind.TRACE:
            return result_of(self._dispatcher.trace(*at, worker=self._worker), self._stop)
        report = result_of(self._dispatcher.count(*at, look.metrics, worker=self._worker), self._stop)
        if look.metrics or report.reason or not isinstance(trial.outcome, Measured):
            return report
        target, time_us = self._target, trial.outcome.time_us
        return with_derived(report, problem.workload, target.gpu, time_us=time_us, simulated=target.simulated)

    def _end(self, look: Inspection, error: Exception) -> None:
        """Ends a look at which `error` was raised, or leaves it for another attempt."""
        match error:
            case InvalidInput():
                with self._store.write() as session:
                    refusal = (error.field, error.problem, error.remedy)
                    inspections.refuse(session, look.seq, refusal, self._clock())
            case WorkerError() if look.num_attempts + 1 < inspections.MAX_ATTEMPTS:
                _log.warning("the %s of trial %d of %s failed, they are tried again: %s",
                             look.kind, look.trial_number, look.job_id, error)  # fmt: skip
                self._stop.wait(RETRY_PAUSE_S)
            case TunerError():
                self._fail(look, str(error))
            case _:
                _log.error("the %s of trial %d of %s failed", look.kind, look.trial_number, look.job_id, exc_info=error)
                self._fail(look, f"a fault of the service: {type(error).__name__}: {error}")

    def _fail(self, look: Inspection, reason: str) -> None:
        with self._store.write() as session:
            inspections.fail(session, look.seq, reason, self._clock())


def figures_of(result: CounterReport | Trace) -> tuple[Metric, ...]:
    """What a table shows of a result."""
    if isinstance(result, CounterReport):
        return tuple(Metric(tag=counter.name, unit=counter.unit, value=counter.value) for counter in result.counters)
    return trace_metrics(result)
