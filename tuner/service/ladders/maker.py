"""Finishes ladders: once all jobs have ended, determines which kernel runs for which rows, and makes the kernels'
artifacts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from operator import attrgetter

from tuner.core.problem.op_kinds import culprit
from tuner.core.trial.ladders.ladder import (
    DEFAULT_SLACK,
    Ladder,
    LadderKernel,
    Measurement,
    Option,
    kernel_name,
    make_ladder,
)
from tuner.core.trial.records import Best, JobRecord, kernel_row
from tuner.dispatch.sources import without_artifact
from tuner.errors import NotFound, Quarantined, WorkerError
from tuner.packs.shapes import is_pair
from tuner.service.concurrency.background import BackgroundWork
from tuner.service.concurrency.waiting import JobFailed, Patience, Stopped
from tuner.service.inspections import problem_of
from tuner.service.results.zip_files import pack_zip
from tuner.store import Session
from tuner.store.jobs import batches
from tuner.store.results import bests
from tuner.store.results.artifacts import register

_log = logging.getLogger(__name__)

#: A ladder's batch, and its number in the batch.
Key = tuple[str, int]


class LadderMaker(BackgroundWork):
    """Finishes the ladders of one target, one at a time, in the thread of its runner."""

    def take_one(self) -> bool:
        """Finishes a waiting ladder, if any; returns whether there was one.

        Raises:
            Stopped: the service is closing; it continues at the next start.
            Quarantined: the card is not usable; it continues once it is.
        """

        def choose(taken: Collection[Key]) -> Key | None:
            with self._store.read() as session:
                return batches.next_unanswered(session, self._target.id, besides=taken)

        with self._claims.ladders.take(choose) as key:
            if key is not None:
                try:
                    self._answer(*key)
                except NotFound as error:  # the batch was deleted meanwhile
                    _log.info("ladder %d of %s has no batch any more: %s", key[1], key[0], error)
            return key is not None

    def _answer(self, batch_id: str, number: int) -> None:
        with self._store.read() as session:
            members = [job for job, _ in batches.jobs_of(session, batch_id, number)]
            measured = [(job, best) for job in members if (best := bests.find(session, job.id))]
        by_size = attrgetter("batch_size")
        workloads = sorted((job.spec.workload for job in members), key=by_size)  # empty if all jobs were deleted
        largest = workloads[-1].describe() if workloads else ""
        try:
            ladder = self._ladder(largest, measured)
        except (Stopped, Quarantined):
            raise
        except (JobFailed, WorkerError) as error:
            ladder = without_answer(largest, str(error))
        except Exception as error:
            if self._stop.is_set():  # the worker was stopped because the service closes
                raise Stopped from error
            _log.error("ladder %d of %s failed", number, batch_id, exc_info=error)
            ladder = without_answer(largest, f"an error in {culprit(error)}: {type(error).__name__}: {error}")
        now = self._clock()
        self._writer.write(lambda session: batches.answer(session, batch_id, number, ladder, now))
        _log.info("ladder %d of %s: %d kernels for %d jobs", number, batch_id, len(ladder.kernels), len(members))

    def _ladder(self, largest: str, measured: Sequence[tuple[JobRecord, Best]]) -> Ladder:
        measurements = [one for job, best in measured if (one := measurement_of(job, best))]
        if not measurements:
            return without_answer(largest, "none of its jobs succeeded")
        ladder = make_ladder(largest, measurements, DEFAULT_SLACK)
        jobs = {job.id: job for job, _ in measured}
        return replace(ladder, kernels=tuple(self._with_artifact(one, jobs[one.job_id]) for one in ladder.kernels))

    def _with_artifact(self, kernel: LadderKernel, job: JobRecord) -> LadderKernel:
        """The kernel with its artifact, made for the largest number of rows that it serves; unchanged if artifacts do
        not support a kind of op."""
        if without_artifact(job.spec.workload):
            return kernel
        serves = {name: value for name, value in asdict(kernel).items() if name in ("m_lo", "m_hi")}
        extra = {"job_id": job.id, "batch_id": job.batch_id, "serves": serves, "spec": job.spec.to_json()}
        files = Patience(self._target.id, self._stop).result(
            lambda: self._lane.artifact(problem_of(job), kernel.candidate, extra)
        )
        content = pack_zip(files.files)
        digest, now = self._writer.keep(content), self._clock()

        def note(session: Session) -> None:
            register(session, digest, len(content), now)

        self._writer.write(note)
        return replace(kernel, artifact_digest=digest)


def without_answer(workload: str, reason: str) -> Ladder:
    """A ladder without a result, with the reason."""
    return Ladder(workload=workload, rungs=(), kernels=(), slack=DEFAULT_SLACK, least=0, reason=reason)


def measurement_of(job: JobRecord, best: Best) -> Measurement | None:
    """The measurements of a job's finals; None if the library has no time. If a pack may not run the workload on two
    streams, the fastest of the other kernels counts.
    """
    workload = job.spec.workload
    on_two = is_pair(workload.to_json())
    rows = [row for row in best.finals if on_two or not row.candidate.plan_kind.is_side_by_side]
    is_left_out = best.winner.is_side_by_side and not on_two
    library_us = next(
        (row.time_us for row in best.finals if not row.candidate.plan_kind.is_ours and row.time_us is not None), None
    )
    if library_us is None:
        return None
    own = kernel_row(rows, best.winner, job.spec.energy_within_percent) if best.winner.is_ours else None
    if own is None or own.time_us is None or (is_left_out and own.time_us >= library_us):
        return Measurement(m=workload.batch_size, job_id=job.id, library_us=library_us, options=(), winner=None)
    options = tuple(
        Option(
            name=kernel_name(row.candidate, workload),
            time_us=row.time_us,
            speedup=row.speedup or library_us / row.time_us,
            speedup_ci95=row.speedup_ci95,
        )
        for row in rows
        if row.candidate.plan_kind.is_ours and row.time_us is not None
    )
    winner = kernel_name(own.candidate, workload)
    return Measurement(m=workload.batch_size, job_id=job.id, library_us=library_us, options=options, winner=winner)
