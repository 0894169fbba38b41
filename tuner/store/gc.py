"""Bounds what artifacts, builds, samples and inspections take on disk; results, and the files they name, stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobState
from tuner.store.artifacts import ArtifactFolder
from tuner.store.models import ArtifactRow, BestRow, InspectionRow, JobRow, TrialRow

_FINAL_STATES = tuple(str(state) for state in JobState if state.is_final)


@dataclass(frozen=True, kw_only=True)
class Freed:
    """What one collection did."""

    num_files: int
    #: Jobs whose raw samples were dropped; their medians and spreads stay.
    num_jobs: int
    #: Counters and traces of ended jobs that were dropped; they can be asked for again.
    num_inspections: int
    freed_bytes: int
    #: What is left of artifacts, builds, samples, counters and traces.
    kept_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Item:
    """Something that may go."""

    #: Seconds since the epoch; the oldest goes first.
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


def _droppable_samples(session: Session) -> Iterator[_Item]:
    size = func.sum(func.length(TrialRow.samples))
    query = (
        select(JobRow.id, JobRow.finished_at, size)
        .join(TrialRow, TrialRow.job_id == JobRow.id)
        .where(JobRow.state.in_(_FINAL_STATES), TrialRow.samples.is_not(None))
        .group_by(JobRow.id, JobRow.finished_at)
    )
    for job_id, finished_at, size_bytes in session.execute(query):
        drop = update(TrialRow).where(TrialRow.job_id == job_id).values(samples=None)
        yield _Item(at=finished_at or 0.0, size_bytes=size_bytes, kind="samples", remove=partial(session.execute, drop))


def _droppable_inspections(session: Session) -> Iterator[_Item]:
    query = (
        select(InspectionRow.seq, InspectionRow.finished_at, func.length(InspectionRow.result))
        .join(JobRow, JobRow.id == InspectionRow.job_id)
        .where(JobRow.state.in_(_FINAL_STATES), InspectionRow.result.is_not(None))
    )
    for seq, finished_at, size_bytes in session.execute(query):
        drop = delete(InspectionRow).where(InspectionRow.seq == seq)
        yield _Item(
            at=finished_at or 0.0, size_bytes=size_bytes, kind="inspection", remove=partial(session.execute, drop)
        )


def collect(session: Session, artifacts: ArtifactFolder, build_cache: Path, limit_bytes: int) -> Freed:
    """Removes builds, artifacts that no result names, and samples, counters and traces of ended jobs, the oldest first,
    until all of it fits `limit_bytes`; call it in a writing session."""
    named = set(session.scalars(select(BestRow.artifact_digest).where(BestRow.artifact_digest.is_not(None))))
    total_bytes = sum(
        session.scalar(select(func.sum(func.length(column)))) or 0
        for column in (TrialRow.samples, InspectionRow.result)
    )
    items = [*_droppable_samples(session), *_droppable_inspections(session)]
    for root in (artifacts.root, build_cache):
        for path, at, size_bytes in _files_below(root):
            total_bytes += size_bytes
            if path.name not in named:
                items.append(
                    _Item(at=at, size_bytes=size_bytes, kind="file", remove=partial(path.unlink, missing_ok=True))
                )
    freed_bytes, removed = 0, Counter[str]()
    for item in sorted(items, key=lambda item: item.at):
        if total_bytes - freed_bytes <= limit_bytes:
            break
        item.remove()
        freed_bytes += item.size_bytes
        removed[item.kind] += 1
    gone = [d for d in session.scalars(select(ArtifactRow.digest)) if not artifacts.path(d).exists()]
    session.execute(delete(ArtifactRow).where(ArtifactRow.digest.in_(set(gone) - named)))
    return Freed(
        num_files=removed["file"],
        num_jobs=removed["samples"],
        num_inspections=removed["inspection"],
        freed_bytes=freed_bytes,
        kept_bytes=total_bytes - freed_bytes,
    )
