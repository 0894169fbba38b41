"""Ends a job: holds the finals, and stores the winner's artifact and the result."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tuner.core.insight.explain_job import best_fused
from tuner.core.insight.policy_times import policy_times
from tuner.core.model.bounds import reference_us
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import FinalsTimes, Problem
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.records import Best, JobRecord, PolicyTime
from tuner.dispatch import MeasureLane
from tuner.dispatch.sources import kernel_version_for, without_artifact
from tuner.service.concurrency.retrying import RetryingWriter
from tuner.service.concurrency.waiting import JobFailed, Patience
from tuner.service.finals.finals import Judgement, choose_finalists, given_ones, judge, near_the_fastest
from tuner.service.inspections import inspections_of, problem_of
from tuner.service.results.zip_files import pack_zip
from tuner.store import Session, Store
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.results.artifacts import register
from tuner.store.trials import inspections

T = TypeVar("T")
_log = logging.getLogger(__name__)

#: Steps of the finals are logged if they take at least this time, seconds.
LOGGED_S = 0.05


class Finisher:
    """Finishes the jobs of one runner, in its thread."""

    def __init__(
        self,
        store: Store,
        writer: RetryingWriter,
        lane: MeasureLane,
        finals: FinalsProcedure,
        disk_limit_bytes: int,
        stop: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        """`finals` is the procedure of finals; `disk_limit_bytes` limits the disk space used afterwards."""
        self._store = store
        self._writer = writer
        self._lane = lane
        self._finals = finals
        self._disk_limit_bytes = disk_limit_bytes
        self._stop = stop
        self._clock = clock

    def _await(self, submit: Callable[[], Future[T]]) -> T:
        """The result of the call that `submit` makes, repeated a limited number of times after worker failures.

        Raises:
            JobFailed: the worker failed each time.
            Quarantined: the card is not usable; the job continues once it is.
        """
        return Patience(self._lane.target.id, self._stop).result(submit)

    def finish(self, job: JobRecord, past: list[Trial], besides: Sequence[Trial] = ()) -> None:
        """Measures the finalists of `past`, and `besides`, against each other; stores the winner's files and the
        result.

        Raises:
            JobFailed: there is nothing to compare with, or the worker failed each time.
            Quarantined: the card is not usable; the job continues once it is.
            Stopped: the service is closing.
        """
        begin_s = time.monotonic()
        problem = problem_of(job)
        within = job.spec.energy_within_percent
        near = () if within is None else near_the_fastest(past, within)
        finalists = choose_finalists(past, (*besides, *near, *given_ones(past, job.spec.tried)))
        if not finalists or finalists[0].candidate.plan_kind.is_ours:
            raise JobFailed(f"there is nothing to compare with: {_library_reason(past)}")
        candidates = tuple(trial.candidate for trial in finalists)
        num_rounds = self._finals.rounds_in(problem.objective.regime)
        torch_compile = job.spec.torch_compile
        times = self._await(lambda: self._lane.finals(problem, candidates, num_rounds, torch_compile=torch_compile))
        seconds = ", ".join(f"{part} {taken:.1f}" for part, taken in times.stage_s.items() if taken >= LOGGED_S)
        if seconds:
            _log.info("%s: seconds of the finals: %s", job.id, seconds)
        if times.times_us[0] is None:
            raise JobFailed(f"the library failed in the finals: {times.reasons[0]}")
        energies_mj = None if within is None else self._energies_mj(problem, candidates, times)
        judgement = replace(judge(finalists, times, self._finals, energies_mj), energy_within_percent=within)
        environment = self._lane.environment()
        environment = replace(environment, kernel_version=kernel_version_for(environment, job.spec.workload))
        if times.torch is not None and times.torch.reason:
            _log.warning("%s: PyTorch was not timed: %s", job.id, times.torch.reason)
        content = self._pack(job, problem, judgement)
        digest = self._writer.keep(content) if content else None
        best = Best(
            job_id=job.id,
            verdict=judgement.verdict,
            winner=judgement.winner,
            tie_band=judgement.tie_band,
            procedure=judgement.procedure,
            finals=judgement.rows,
            reference_us=reference_us(job.spec.workload, self._lane.target.gpu),
            artifact_digest=digest,
            environment=environment,
            policies=self._policies(job, judgement, past),
            library=times.library,
            torch=times.torch,
        )
        finals_s = time.monotonic() - begin_s
        self._writer.write(partial(_keep_result, best=best, content=content, finals_s=finals_s, now=self._clock()))
        self._store.collect_garbage(self._disk_limit_bytes)

    def _energies_mj(
        self, problem: Problem, candidates: Sequence[Candidate], times: FinalsTimes
    ) -> tuple[float | None, ...]:
        """Energies of the candidates with times, millijoules per run."""

        def of(candidate: Candidate) -> float | None:
            return self._await(lambda: self._lane.energy(problem, candidate)).run_mj

        return tuple(of(one) if us else None for one, us in zip(candidates, times.times_us, strict=True))

    def _policies(self, job: JobRecord, judgement: Judgement, past: list[Trial]) -> tuple[PolicyTime, ...]:
        """The time of each policy with the kernel of the best fused finalist; empty if there is none."""
        row = best_fused(judgement.rows)
        if row is None or row.candidate.schedule is None:
            return ()
        return policy_times(job.spec.workload, self._lane.target.gpu, row.candidate.schedule, past)

    def _pack(self, job: JobRecord, problem: Problem, judgement: Judgement) -> bytes | None:
        """The zip of our best kernel, even if the library won; None if no generated kernel succeeded, or if artifacts
        do not support an op's kind."""
        row = judgement.kernel
        if without := without_artifact(problem.workload):
            _log.warning("%s: artifacts do not support %s", job.id, " and ".join(without))
        if row is None or without:
            return None
        extra = {"job_id": job.id, "result": judgement.to_json(), "spec": job.spec.to_json()}
        files = self._await(lambda: self._lane.artifact(problem, row.candidate, extra))
        return pack_zip(files.files)


def _keep_result(session: Session, best: Best, content: bytes | None, finals_s: float, now: float) -> None:
    """Ends a job: stores its result and state, and requests the inspections of its finalists."""
    if content and best.artifact_digest:
        register(session, best.artifact_digest, len(content), now)
    bests.insert(session, best)
    jobs.held_finals(session, best.job_id, finals_s)
    jobs.set_state(session, best.job_id, JobState.SUCCEEDED, now)
    for number, kind in inspections_of(best.finals):
        inspections.ask(session, best.job_id, number, kind, None, is_urgent=False, now=now)


def _library_reason(past: list[Trial]) -> str:
    """Why no trial measured the library."""
    for trial in past:
        if not trial.candidate.plan_kind.is_ours:
            return f"the library's trial ended with {getattr(trial.outcome, 'reason', 'no time')}"
    return "the budget ended before the library's trial"
