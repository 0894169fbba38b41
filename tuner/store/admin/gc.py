"""Limits the disk space of artifacts, builds, samples and inspections; results and their files are kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import CompoundSelect, delete, func, select, union, update
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobState
from tuner.store.results.artifacts import ArtifactFolder, is_named
from tuner.store.tables.batch_models import BatchKernelRow
from tuner.store.tables.models import ArtifactRow, BestRow, InspectionRow, JobRow, PackRow, TrialRow

#: Maximum number of rows changed in one writing session.
_SLICE = 200
#: Pause between two slices, seconds, in which others can write.
_PAUSE_S = 0.002

_FINAL_STATES = tuple(str(state) for state in JobState if state.is_final)


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The result of one collection."""

    num_files: int
    #: Number of jobs whose raw samples were dropped; their medians and spreads are kept.
    num_jobs: int
    #: Number of dropped counters and traces of ended jobs; they can be requested again.
    num_inspections: int
    freed_bytes: int
    #: The remaining size of artifacts, builds, samples, counters and traces.
    kept_bytes: int


#: Opens a reading or a writing session of the store.
Sessions = Callable[[], AbstractContextManager[Session]]


@dataclass(frozen=True, kw_only=True)
class _Item:
    """Something that may be removed."""

    #: When it was written, seconds since the epoch; the oldest item is removed first.
    at: float
    size_bytes: int
    #: ``file``, ``samples`` or ``inspection``.
    kind: str
    remove: Callable[[], object]


def _files_below(root: Path) -> Iterator[tuple[Path, float, int]]:
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):  # a compiler's temporary file may be gone by now
            if path.is_file():
                yield path, path.stat().st_mtime, path.stat().st_size


class Collector:
    """Removes builds, artifacts that no result names, and samples, counters and traces of ended jobs.

    It holds the writer lock only for one slice at a time: sizes are recorded when data is written, and are looked up in
    reading sessions.
    """

    def __init__(self, read: Sessions, write: Sessions, artifacts: ArtifactFolder, build_cache: Path) -> None:
        self._read = read
        self._write = write
        self._artifacts = artifacts
        self._build_cache = build_cache

    def collect(self, limit_bytes: int, spared_s: float = 0.0) -> Freed:
        """Removes the oldest data first, until the rest fits into `limit_bytes`. Data younger than `spared_s` is kept,
        since another server may have written a file that no row refers to yet."""
        total_bytes, items = self._survey()
        freed_bytes, removed = 0, Counter[str]()
        before = time.time() - spared_s
        for item in sorted((item for item in items if item.at <= before), key=lambda item: item.at):
            if total_bytes - freed_bytes <= limit_bytes:
                break
            item.remove()
            freed_bytes += item.size_bytes
            removed[item.kind] += 1
        self._forget_files()
        return Freed(
            num_files=removed["file"],
            num_jobs=removed["samples"],
            num_inspections=removed["inspection"],
            freed_bytes=freed_bytes,
            kept_bytes=total_bytes - freed_bytes,
        )

    def _survey(self) -> tuple[int, list[_Item]]:
        """The total size in bytes, and what may be removed."""
        with self._read() as session:
            named = set(session.scalars(_named()))
            sizes = (func.sum(JobRow.samples_bytes), func.sum(InspectionRow.result_bytes))
            total_bytes = sum(session.scalar(select(size)) or 0 for size in sizes)
            items = [*self._samples(session), *self._inspections(session)]
        for path, at, size_bytes in _files_below(self._artifacts.root):
            total_bytes += size_bytes
            if path.name not in named:
                drop = partial(self._drop_artifact, path)
                items.append(_Item(at=at, size_bytes=size_bytes, kind="file", remove=drop))
        for path, at, size_bytes in _files_below(self._build_cache):
            total_bytes += size_bytes
            unlink = partial(path.unlink, missing_ok=True)
            items.append(_Item(at=at, size_bytes=size_bytes, kind="file", remove=unlink))
        return total_bytes, items

    def _samples(self, session: Session) -> Iterator[_Item]:
        query = select(JobRow.id, JobRow.finished_at, JobRow.samples_bytes).where(
            JobRow.state.in_(_FINAL_STATES), JobRow.samples_bytes > 0
        )
        for job_id, at, size_bytes in session.execute(query):
            drop = partial(self._drop_samples, job_id)
            yield _Item(at=at or 0.0, size_bytes=size_bytes, kind="samples", remove=drop)

    def _inspections(self, session: Session) -> Iterator[_Item]:
        query = (
            select(InspectionRow.seq, InspectionRow.finished_at, InspectionRow.result_bytes)
            .join(JobRow, JobRow.id == InspectionRow.job_id)
            .where(JobRow.state.in_(_FINAL_STATES), InspectionRow.result_bytes > 0)
        )
        for seq, at, size_bytes in session.execute(query):
            drop = partial(self._drop_inspection, seq)
            yield _Item(at=at or 0.0, size_bytes=size_bytes, kind="inspection", remove=drop)

    def _drop_samples(self, job_id: str) -> None:
        """Drops samples slice by slice, and updates the job's size with each slice, so that it is correct even if the
        process is killed."""
        last: int | None = -1
        while last is not None:
            with self._write() as session:
                last = _drop_slice(session, job_id, last)
            time.sleep(_PAUSE_S)

    def _drop_inspection(self, seq: int) -> None:
        with self._write() as session:
            session.execute(delete(InspectionRow).where(InspectionRow.seq == seq))
        time.sleep(_PAUSE_S)

    def _drop_artifact(self, path: Path) -> None:
        with self._write() as session:  # a new result may refer to it
            if not is_named(session, path.name):
                path.unlink(missing_ok=True)

    def _forget_files(self) -> None:
        """Removes artifacts from the list if their files are gone and nothing refers to them."""
        unnamed = (ArtifactRow.digest.not_in(_named()),)
        with self._read() as session:
            listed = list(session.scalars(select(ArtifactRow.digest).where(*unnamed)))
        gone = [digest for digest in listed if not self._artifacts.path(digest).exists()]
        for begin in range(0, len(gone), _SLICE):
            with self._write() as session:
                some = ArtifactRow.digest.in_(gone[begin : begin + _SLICE])
                session.execute(delete(ArtifactRow).where(some, *unnamed))


def _named() -> CompoundSelect[str]:
    """Digests of the artifacts that a result, a ladder or a pack refers to."""
    columns = (BestRow.artifact_digest, BatchKernelRow.digest, PackRow.digest)
    return union(*(select(column).where(column.is_not(None)) for column in columns))


def _drop_slice(session: Session, job_id: str, after: int) -> int | None:
    """Drops the samples of the next `_SLICE` trials after trial `after`; returns the number of the last one, or None at
    the end."""
    query = select(TrialRow.number, func.length(TrialRow.samples)).where(
        TrialRow.job_id == job_id, TrialRow.number > after
    )
    rows = session.execute(query.order_by(TrialRow.number).limit(_SLICE)).all()
    if not rows:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(samples_bytes=0))
        return None
    last = int(rows[-1][0])
    some = (TrialRow.job_id == job_id, TrialRow.number > after, TrialRow.number <= last)
    session.execute(update(TrialRow).where(*some).values(samples=None))
    freed_bytes = sum(size_bytes or 0 for _, size_bytes in rows)
    left = JobRow.samples_bytes - freed_bytes
    session.execute(update(JobRow).where(JobRow.id == job_id).values(samples_bytes=left))
    return last
