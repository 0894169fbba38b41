"""Performs inspections of trials, which cannot affect their job's result."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from tuner.core.insight.derived_counters import with_derived
from tuner.core.insight.traces.tracing import trace_metrics
from tuner.core.problem.op_kinds import culprit
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Measured, Metric
from tuner.core.trial.records import FinalRow, Inspection, InspectionKind, JobRecord
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.errors import InvalidInput, NotFound, Quarantined, TunerError, WorkerError
from tuner.logs import about
from tuner.service.concurrency.background import BackgroundWork
from tuner.service.concurrency.waiting import Stopped, result_of
from tuner.store import Session
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.trials import inspections, trials

_log = logging.getLogger(__name__)

#: Pause after a worker failure, seconds; the worker may come back.
RETRY_PAUSE_S = 0.5


def problem_of(job: JobRecord) -> Problem:
    """The settings that all candidates of `job` share."""
    return Problem(workload=job.spec.workload, objective=job.spec.objective, seed=job.spec.seed)


def check_inspection(trial: Trial, kind: InspectionKind) -> None:
    """Refuses inspections of trials that were not run.

    Raises:
        InvalidInput: the trial was not measured, or has no generated kernel to trace.
    """
    if not isinstance(trial.outcome, Measured):
        ended = type(trial.outcome).__name__.lower()
        raise InvalidInput(
            "number",
            f"trial {trial.number} was not measured ({ended}): {trial.outcome.reason}",
            "use one of `GET /jobs/{job_id}/trials?outcome=measured`",
        )
    if kind is InspectionKind.TRACE and not trial.candidate.plan_kind.is_ours:
        raise InvalidInput(
            "number",
            f"trial {trial.number} is of kind {trial.candidate.plan_kind}, whose kernels cannot be traced",
            "use a trial of a generated kernel, e.g. one of `GET "
            "/jobs/{job_id}/trials?plan_kind=fused&outcome=measured`",
        )


def inspections_of(rows: Iterable[FinalRow]) -> list[tuple[int, InspectionKind]]:
    """The inspections of a job's finalists, by trial number: energy for all, unless the finals measured it, then
    counters for the best of each plan kind, and traces of generated kernels."""
    best = dict[PlanKind, FinalRow]()
    timed = sorted((row for row in rows if row.time_us is not None), key=lambda row: row.time_us or 0.0)
    for row in timed:
        best.setdefault(row.candidate.plan_kind, row)
    asked = [(row.trial_number, InspectionKind.ENERGY) for row in timed if row.energy_mj is None]
    for kind, row in best.items():
        asked.append((row.trial_number, InspectionKind.COUNTERS))
        if kind.is_ours:
            asked.append((row.trial_number, InspectionKind.TRACE))
    return asked


class Inspector(BackgroundWork):
    """Performs the inspections of one target, one at a time, in the thread of its runner."""

    def take_one(self, *, urgent_only: bool = False) -> bool:
        """Performs a pending inspection, if any; returns whether there was one.

        Raises:
            Stopped: the service is closing; the inspection stays pending.
            Quarantined: the card is not usable; the inspection stays pending too.
        """

        def choose(taken: Collection[int]) -> Inspection | None:
            with self._store.read() as session:
                return inspections.next_pending(session, self._target.id, urgent_only=urgent_only, besides=taken)

        with self._claims.inspections.take(choose) as inspection:
            if inspection is not None:
                self._take(inspection)
            return inspection is not None

    def _take(self, inspection: Inspection) -> None:
        if inspection.num_attempts >= inspections.MAX_ATTEMPTS:
            self._fail(inspection, f"the service ended {inspection.num_attempts} times while it was being collected")
            return
        try:
            job, trial = self._writer.write(lambda session: _begin(session, inspection))
        except NotFound as error:
            _log.info("an inspection was not collected: %s", error)
            return
        try:
            with about(job_id=job.id, trial_number=str(trial.number)):
                result = self._inspect(inspection, problem_of(job), trial)
        except (Stopped, Quarantined):
            self._writer.write(lambda session: inspections.put_back(session, inspection.seq))
            raise
        except Exception as error:
            if self._stop.is_set():  # the worker was stopped because the service closes
                self._writer.write(lambda session: inspections.put_back(session, inspection.seq))
                raise Stopped from error
            self._end(inspection, error)
        else:
            now = self._clock()
            self._writer.write(lambda session: _finish(session, inspection, result, now))

    def _inspect(self, inspection: Inspection, problem: Problem, trial: Trial) -> CounterReport | EnergyReport | Trace:
        """The result; figures that depend on a time use the trial's own time, measured without a profiler."""
        lane = self._lane
        if inspection.kind is InspectionKind.TRACE:
            return result_of(lane.trace(problem, trial.candidate), self._stop)
        if inspection.kind is InspectionKind.ENERGY:
            return result_of(lane.energy(problem, trial.candidate), self._stop)
        report = result_of(lane.count(problem, trial.candidate, inspection.metrics), self._stop)
        if inspection.metrics or report.reason or not isinstance(trial.outcome, Measured):
            return report
        target, time_us = self._target, trial.outcome.time_us
        return with_derived(report, problem.workload, target.gpu, time_us=time_us, simulated=target.simulated)

    def _end(self, inspection: Inspection, error: Exception) -> None:
        """Ends an inspection that raised `error`, or leaves it for another attempt."""
        match error:
            case InvalidInput():
                refusal, now = (error.field, error.problem, error.remedy), self._clock()
                self._writer.write(lambda session: inspections.refuse(session, inspection.seq, refusal, now))
            case WorkerError() if inspection.num_attempts + 1 < inspections.MAX_ATTEMPTS:
                _log.warning("the %s of trial %d of %s failed and will be tried again: %s",
                             inspection.kind, inspection.trial_number, inspection.job_id, error)  # fmt: skip
                self._stop.wait(RETRY_PAUSE_S)
            case TunerError():
                self._fail(inspection, str(error))
            case _:
                _log.error(
                    "the %s of trial %d of %s failed",
                    inspection.kind,
                    inspection.trial_number,
                    inspection.job_id,
                    exc_info=error,
                )
                self._fail(inspection, f"an error in {culprit(error)}: {type(error).__name__}: {error}")

    def _fail(self, inspection: Inspection, reason: str) -> None:
        now = self._clock()
        self._writer.write(lambda session: inspections.fail(session, inspection.seq, reason, now))


def _begin(session: Session, inspection: Inspection) -> tuple[JobRecord, Trial]:
    """Counts an attempt; returns the job and the trial of the inspection."""
    inspections.begin(session, inspection.seq)
    return jobs.get(session, inspection.job_id), trials.get(session, inspection.job_id, inspection.trial_number)


def _finish(session: Session, inspection: Inspection, result: CounterReport | EnergyReport | Trace, now: float) -> None:
    """Stores the result; an energy is also stored in the finals of its job."""
    inspections.finish(session, inspection.seq, result, figures_of(result), now)
    if isinstance(result, EnergyReport):
        bests.put_energy(session, inspection.job_id, inspection.trial_number, result.run_mj)


def figures_of(result: CounterReport | EnergyReport | Trace) -> tuple[Metric, ...]:
    """The figures of a result that tables show."""
    match result:
        case CounterReport():
            return tuple(Metric(tag=one.name, unit=one.unit, value=one.value) for one in result.counters)
        case EnergyReport(run_mj=run_mj, power_w=power_w):
            figures = (("energy_per_run", "mJ", run_mj), ("power", "W", power_w or None))
            return tuple(Metric(tag=tag, unit=unit, value=value) for tag, unit, value in figures if value is not None)
        case Trace():
            return trace_metrics(result)
