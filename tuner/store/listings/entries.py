"""The front page's rows: first those that are running, then those that wait, then those that have ended. A batch is one
row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Double, case, cast, func, select
from sqlalchemy.orm import Session

from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import BatchSummary
from tuner.core.trial.records import JobRecord, Page
from tuner.store.engine.cursors import decode_cursor, encode_cursor
from tuner.store.jobs.jobs import JobFilter, to_record
from tuner.store.tables.models import JobRow

_RANK = case(
    (JobRow.state.in_((str(JobState.SEARCHING), str(JobState.FINALS))), 0),
    (JobRow.state == str(JobState.QUEUED), 1),
    else_=2,
)
_NUM_TRIALS = JobRow.num_measured + JobRow.num_rejected + JobRow.num_failed


class Order(StrEnum):
    """How jobs are listed."""

    #: Running, waiting, ended, each with the newest first; a batch is one row.
    STANDING = "standing"
    NEWEST = "newest"
    #: Largest gain over the library first.
    SPEEDUP = "speedup"
    #: Our shortest time first.
    TIME = "time"
    #: The most trials first.
    TRIALS = "trials"


#: The sort key of each order; the smallest comes first.
_KEYS: dict[Order, ColumnElement[float]] = {
    Order.NEWEST: cast(-JobRow.seq, Double),
    Order.SPEEDUP: func.coalesce(-JobRow.best_speedup, 1.0),
    Order.TIME: func.coalesce(JobRow.best_us, 1e300),
    Order.TRIALS: cast(-_NUM_TRIALS, Double),
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row: a job, or a batch and its newest job."""

    job: JobRecord
    batch: BatchSummary | None


def page(session: Session, cursor: str | None, limit: int, chosen: JobFilter, order: Order) -> Page[Entry]:
    """One page of entries, sorted by `order`.

    Raises:
        InvalidInput: the cursor belongs to another listing.
    """
    if order is Order.STANDING:
        return _by_standing(session, cursor, limit, chosen)
    listing, key = f"{chosen.listing} by {order}", _KEYS[order]
    query = select(JobRow, key).where(*chosen.conditions()).order_by(key, JobRow.seq.desc()).limit(limit + 1)
    if cursor is not None:
        at, seq = decode_cursor(listing, cursor, (float, int))
        query = query.where((key > at) | ((key == at) & (JobRow.seq < seq)))
    rows = session.execute(query).all()
    last = rows[limit - 1] if len(rows) > limit else None
    more = None if last is None else encode_cursor(listing, [float(last[1]), last[0].seq])
    return Page(items=[Entry(job=to_record(row), batch=None) for row, _ in rows[:limit]], next_cursor=more)


def _by_standing(session: Session, cursor: str | None, limit: int, chosen: JobFilter) -> Page[Entry]:
    name, rank, newest = func.coalesce(JobRow.batch_id, JobRow.id), func.min(_RANK), func.max(JobRow.seq)
    listing, conditions = f"{chosen.listing} by standing", list(chosen.conditions())
    query = select(newest, rank).where(*conditions).group_by(name).order_by(rank, newest.desc()).limit(limit + 1)
    if cursor is not None:
        at, seq = decode_cursor(listing, cursor, (int, int))
        query = query.having((rank > at) | ((rank == at) & (newest < seq)))
    rows = session.execute(query).all()
    more = encode_cursor(listing, [rows[limit - 1][1], rows[limit - 1][0]]) if len(rows) > limit else None
    seqs = [seq for seq, _ in rows[:limit]]
    found = {row.seq: row for row in session.scalars(select(JobRow).where(JobRow.seq.in_(seqs)))}
    batches = _summaries(session, {row.batch_id for row in found.values() if row.batch_id}, conditions)
    return Page(
        items=[
            Entry(job=to_record(found[seq]), batch=batches.get(found[seq].batch_id or ""))
            for seq in seqs
            if seq in found
        ],
        next_cursor=more,
    )


def _summaries(
    session: Session, batch_ids: Collection[str], conditions: Collection[ColumnElement[bool]]
) -> dict[str, BatchSummary]:
    rows = JobRow.spec["workload"]["ops"][0]["m"].as_integer()
    budget = JobRow.spec["budget"]["trials"].as_integer()
    goes_on = JobRow.state.in_((str(JobState.QUEUED), str(JobState.SEARCHING)))
    planned = case((goes_on, budget), else_=_NUM_TRIALS)
    query = (
        select(
            JobRow.batch_id,
            JobRow.state,
            func.count(),
            func.sum(_NUM_TRIALS),
            func.sum(planned),
            func.min(JobRow.best_speedup),
            func.max(JobRow.best_speedup),
            func.min(rows),
            func.max(rows),
        )
        .where(JobRow.batch_id.in_(batch_ids), *conditions)
        .group_by(JobRow.batch_id, JobRow.state)
    )
    parts: dict[str, list[Any]] = {}
    for batch_id, *values in session.execute(query):
        parts.setdefault(str(batch_id), []).append(values)
    return {batch_id: _summary(batch_id, found) for batch_id, found in parts.items()}


def _summary(batch_id: str, parts: list[Any]) -> BatchSummary:
    states, counts, trials, planned, slowest, fastest, fewest, most = zip(*parts, strict=True)
    gains = [gain for gain in (*slowest, *fastest) if gain is not None]
    return BatchSummary(
        id=batch_id,
        counts={JobState(state): int(count) for state, count in zip(states, counts, strict=True)},
        num_trials=int(sum(trials)),
        num_planned=int(sum(planned)),
        speedups=(min(gains), max(gains)) if gains else None,
        rows=None if None in fewest else (min(fewest), max(most)),
    )
