"""Removal of jobs: marked as deleted at once, then removed slice by slice with all their data.

A job may have 100,000 trials, so its rows are removed in slices, between which others can write. If the process is
killed in between, the job stays marked as deleted, and the next sweep continues.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, delete, select, text, update
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobState
from tuner.errors import Conflict
from tuner.store.admin.gc import Sessions
from tuner.store.jobs.jobs import IS_KEPT, row_of
from tuner.store.results.artifacts import ArtifactFolder, is_named
from tuner.store.results.result_keys import best_of_each
from tuner.store.tables.batch_models import BatchJobRow, BatchKernelRow, BatchLadderRow, BatchRow, SingleRequestRow
from tuner.store.tables.models import (
    ArtifactRow,
    BestRow,
    DeletedJobRow,
    EventRow,
    IdempotencyKeyRow,
    InspectionRow,
    JobLabelRow,
    JobOwnerRow,
    JobRow,
    ResultKeyRow,
    TrialRow,
    WebhookRow,
)

_FINAL_STATES = tuple(str(state) for state in JobState if state.is_final)
#: Maximum number of rows removed in one writing session.
_SLICE = 500
#: Pause between two slices, seconds, in which others can write.
_PAUSE_S = 0.002
#: Number of pages released to the disk at a time.
_PAGES = 500

_log = logging.getLogger(__name__)


def expired(session: Session, *, before: float | None, num_kept: int | None, keeps_best: bool = False) -> list[str]:
    """Ids of ended jobs, oldest first: those that ended `before`, and those beyond the newest `num_kept`.

    With `keeps_best`, a job is kept if `GET /best` returns its result for an exact question.
    """
    ended = select(JobRow.id).where(JobRow.state.in_(_FINAL_STATES), IS_KEPT)
    found: set[str] = set()
    if before is not None:
        found |= set(session.scalars(ended.where(JobRow.finished_at < before)))
    if num_kept is not None:
        found |= set(session.scalars(ended.order_by(JobRow.seq.desc()).offset(num_kept)))
    if keeps_best and found:
        found -= set(session.scalars(best_of_each()))
    return [job_id for job_id in session.scalars(ended.order_by(JobRow.seq)) if job_id in found] if found else []


def mark(session: Session, job_id: str, now: float, reason: str) -> None:
    """Marks an ended job and its result as deleted; `Sweeper` removes its rows. `reason` says who deleted it.

    Raises:
        NotFound: there is no such job.
        Conflict: the job is open; cancel it first.
    """
    row = row_of(session, job_id)
    if not JobState(row.state).is_final:
        raise Conflict(f"{job_id} has the state {row.state}; cancel it before deleting it")
    row.deleted_at = now
    session.add(DeletedJobRow(job_id=job_id, deleted_at=now, reason=reason[:255]))
    for model in (ResultKeyRow, IdempotencyKeyRow, WebhookRow):
        session.execute(delete(model).where(model.job_id == job_id))


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What one sweep removed."""

    num_jobs: int
    num_trials: int
    #: Number of artifacts to which no result or pack referred any more.
    num_files: int


class Sweeper:
    """Removes the rows and the artifacts of deleted jobs, and releases their space to the disk."""

    def __init__(self, engine: Engine, read: Sessions, write: Sessions, artifacts: ArtifactFolder) -> None:
        self._engine = engine
        self._read = read
        self._write = write
        self._artifacts = artifacts

    def sweep(self, goes_on: Callable[[], bool] = lambda: True) -> Swept:
        """Removes everything, or stops when `goes_on` is false; the next sweep removes the rest.

        Raises:
            StoreUnavailable: the database cannot be written now.
        """
        num_jobs = num_trials = num_files = 0
        while goes_on() and (job_id := self._next()) is not None:
            for model in (InspectionRow, EventRow, TrialRow):
                while goes_on() and (num_removed := self._remove_slice(model, job_id)):
                    num_trials += num_removed if model is TrialRow else 0
                    time.sleep(_PAUSE_S)
            if goes_on():
                num_files += self._end(job_id)
                num_jobs += 1
        if num_jobs:
            release_pages(self._engine, goes_on)
        return Swept(num_jobs=num_jobs, num_trials=num_trials, num_files=num_files)

    def _next(self) -> str | None:
        with self._read() as session:
            return session.scalar(select(JobRow.id).where(~IS_KEPT).order_by(JobRow.seq).limit(1))

    def _remove_slice(self, model: type[InspectionRow | EventRow | TrialRow], job_id: str) -> int:
        """Removes some rows of a job; returns how many."""
        key = {InspectionRow: InspectionRow.seq, EventRow: EventRow.id, TrialRow: TrialRow.number}[model]
        some = select(key).where(model.job_id == job_id).order_by(key).limit(_SLICE)
        with self._write() as session:
            keys = list(session.scalars(some))
            if keys:
                session.execute(delete(model).where(model.job_id == job_id, key >= keys[0], key <= keys[-1]))
        return len(keys)

    def _end(self, job_id: str) -> int:
        """Removes the job's own row, its result, and its artifact if nothing else refers to it; returns the number of
        removed files."""
        with self._write() as session:
            row = session.scalars(select(JobRow).where(JobRow.id == job_id)).one()
            digest = session.scalar(select(BestRow.artifact_digest).where(BestRow.job_id == job_id))
            session.execute(delete(BestRow).where(BestRow.job_id == job_id))
            for kept_by_seq in (JobOwnerRow, JobLabelRow, BatchJobRow, SingleRequestRow):
                session.execute(delete(kept_by_seq).where(kept_by_seq.job_seq == row.seq))
            session.execute(delete(JobRow).where(JobRow.id == job_id))
            _delete_empty_batches(session)
            if digest is None or is_named(session, digest):
                return 0
            session.execute(delete(ArtifactRow).where(ArtifactRow.digest == digest))
            self._artifacts.path(digest).unlink(missing_ok=True)
            return 1


def _delete_empty_batches(session: Session) -> None:
    """Deletes batches that have no jobs left, with their results."""
    _delete_batches(session, BatchRow.seq.not_in(select(BatchJobRow.batch_seq)))


def remove_batch(session: Session, batch_id: str) -> None:
    """Deletes a batch with its results, and detaches its jobs."""
    session.execute(update(JobRow).where(JobRow.batch_id == batch_id).values(batch_id=None))
    _delete_batches(session, BatchRow.id == batch_id)


def _delete_batches(session: Session, which: ColumnElement[bool]) -> None:
    seqs = list(session.scalars(select(BatchRow.seq).where(which)))
    for model in (BatchKernelRow, BatchLadderRow, BatchJobRow):
        session.execute(delete(model).where(model.batch_seq.in_(seqs)))
    session.execute(delete(BatchRow).where(BatchRow.seq.in_(seqs)))


def release_pages(engine: Engine, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Releases free pages to the disk, a few at a time, while others read and write. The file of an older SQLite
    database keeps its size until `compact`. PostgreSQL's tables are vacuumed, which blocks nobody."""
    if engine.dialect.name == "postgresql":
        _vacuum(engine)
        return
    raw = engine.raw_connection()  # runs outside a transaction
    try:
        cursor = raw.cursor()
        free_before = None
        while goes_on() and (free := cursor.execute("pragma freelist_count").fetchone()[0]) and free != free_before:
            cursor.executescript(f"pragma incremental_vacuum({_PAGES})")  # one row per page, including the last
            free_before = free
            time.sleep(_PAUSE_S)
        cursor.execute("pragma wal_checkpoint(passive)").fetchall()
    except sqlite3.OperationalError as error:  # another writer holds the lock; the next sweep tries again
        _log.info("the database file keeps its size for now: %s", error)
    finally:
        raw.close()


def compact(engine: Engine) -> None:
    """Rewrites the database at minimum size, while nothing else uses it. From then on, free pages of an older SQLite
    database can be released one by one."""
    if engine.dialect.name == "postgresql":
        _vacuum(engine)
        return
    raw = engine.raw_connection()
    try:
        for word in ("vacuum", "pragma wal_checkpoint(truncate)"):
            raw.cursor().execute(word).fetchall()
    finally:
        raw.close()


def _vacuum(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum"))
