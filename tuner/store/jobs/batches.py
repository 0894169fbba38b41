"""Batches: jobs, progress of ladders, and results of ladders."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import ColumnElement, Select, bindparam, case, func, select
from sqlalchemy.orm import Session, aliased, defer

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.ladders.batch import MOST_SHARED, BatchRecord, BatchStep
from tuner.core.trial.ladders.ladder import Ladder
from tuner.core.trial.records import Event, JobRecord, Page
from tuner.errors import InvalidInput, NotFound
from tuner.store.engine.cursors import decode_cursor, encode_cursor
from tuner.store.jobs.jobs import IS_KEPT, OPEN_STATES, row_of, to_record
from tuner.store.tables.batch_models import BatchJobRow, BatchKernelRow, BatchLadderRow, BatchRow
from tuner.store.tables.encoding import ladder_from_json, ladder_to_json, row_to_trial
from tuner.store.tables.models import EventRow, JobRow, TrialRow


def row_of_batch(session: Session, batch_id: str) -> BatchRow:
    """A batch's row; raises `NotFound` if there is no such batch."""
    row = session.scalar(select(BatchRow).where(BatchRow.id == batch_id))
    if row is None:
        why = ": it is a job" if batch_id.startswith("job-") else ""
        raise NotFound(f"there is no batch {batch_id[:80]!r}{why}; GET /batches lists all")
    return row


def new_id() -> str:
    """The id of a new batch."""
    return f"batch-{secrets.token_hex(6)}"


def insert(session: Session, row: BatchRow, jobs: Sequence[tuple[str, int]]) -> None:
    """Adds a batch with its jobs, by id and ladder, in search order."""
    session.add(row)
    session.flush()
    seqs = {job_id: row_of(session, job_id).seq for job_id, _ in jobs}
    for position, (job_id, ladder) in enumerate(jobs):
        session.add(BatchJobRow(batch_seq=row.seq, job_seq=seqs[job_id], ladder=ladder, position=position))
    session.flush()


def get(session: Session, batch_id: str) -> BatchRecord:
    """A batch; raises `NotFound` if there is no such batch."""
    return _records(session, [row_of_batch(session, batch_id)])[0]


def by_key(session: Session, key: str, body_digest: str) -> BatchRecord | None:
    """The batch that was created with a client's key; None if the key is new.

    Raises:
        InvalidInput: the key was used with a different body.
    """
    row = session.scalar(select(BatchRow).where(BatchRow.idempotency_key == key))
    if row is not None and row.body_digest != body_digest:
        raise InvalidInput(
            "Idempotency-Key",
            (f"was used for a different body, which created {row.id}"),
            "use a new key for a new request",
        )
    return _records(session, [row])[0] if row else None


def find_open(session: Session, digest: str, owner: str) -> BatchRecord | None:
    """The newest batch of an owner with exactly the same problems."""
    query = select(BatchRow).where(BatchRow.digest == digest, BatchRow.owner == owner, BatchRow.cancelled_at.is_(None))
    row = session.scalar(query.order_by(BatchRow.seq.desc()).limit(1))
    found = _records(session, [row])[0] if row else None
    return found if found and not found.state.is_final else None


def page(session: Session, cursor: str | None, limit: int, owner: str | None, project: str | None) -> Page[BatchRecord]:
    """Batches, the newest first."""
    listing = f"batches {owner} {project}"
    query = select(BatchRow).order_by(BatchRow.seq.desc()).limit(limit + 1)
    if owner is not None:
        query = query.where(BatchRow.owner == owner)
    if project is not None:
        query = query.where(BatchRow.project == project)
    if cursor is not None:
        query = query.where(BatchRow.seq < decode_cursor(listing, cursor, (int,))[0])
    rows = session.scalars(query).all()
    more = encode_cursor(listing, [rows[limit - 1].seq]) if len(rows) > limit else None
    return Page(items=_records(session, rows[:limit]), next_cursor=more)


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Sums over the jobs of a batch in one state."""

    state: JobState
    jobs: int
    trials: int
    planned: int
    paused: int
    search_s: float
    #: Busy seconds of the card; None if an older version did not count them for one of the jobs.
    card_s: float | None
    #: Number of finals with a known duration, and their total duration.
    finals: int
    finals_s: float
    #: The latest deadline of the jobs; None if one of them has no deadline.
    deadline_at: float | None


_NUM_TRIALS = JobRow.num_measured + JobRow.num_rejected + JobRow.num_failed
_MOST_TRIALS = JobRow.spec["budget"]["trials"].as_integer() + case(
    (JobRow.batch_step.is_not(None), MOST_SHARED), else_=0
)
_TRIES_ON = JobRow.state.in_((str(JobState.QUEUED), str(JobState.SEARCHING))) & (
    func.coalesce(JobRow.batch_step, int(BatchStep.SEARCH)) < int(BatchStep.FINALS)
)
#: Trials that jobs in or after their finals did not run are no longer expected.
_NUM_PLANNED = case((_TRIES_ON & (_NUM_TRIALS < _MOST_TRIALS), _MOST_TRIALS), else_=_NUM_TRIALS)


def _records(session: Session, rows: Sequence[BatchRow]) -> list[BatchRecord]:
    seqs = [row.seq for row in rows]
    is_paused = case((JobRow.is_paused & JobRow.state.in_(OPEN_STATES), 1), else_=0)
    sums = (
        select(
            BatchJobRow.batch_seq,
            JobRow.state,
            func.count(),
            func.sum(_NUM_TRIALS),
            func.sum(_NUM_PLANNED),
            func.sum(is_paused),
            func.sum(JobRow.search_s),
            func.sum(JobRow.card_s),
            func.count(JobRow.card_s),
            func.count(JobRow.finals_s),
            func.coalesce(func.sum(JobRow.finals_s), 0.0),
            func.max(JobRow.deadline_at),
            func.count(JobRow.deadline_at),
        )
        .join(JobRow, JobRow.seq == BatchJobRow.job_seq)
        .where(BatchJobRow.batch_seq.in_(seqs), IS_KEPT)
        .group_by(BatchJobRow.batch_seq, JobRow.state)
    )
    found: dict[int, list[_Sums]] = {seq: [] for seq in seqs}
    for seq, state, *values in session.execute(sums):
        count, trials, planned, paused, search_s, card_s, num_counted, finals, finals_s, due_at, num_due = values
        found[seq].append(
            _Sums(
                state=JobState(state),
                jobs=int(count),
                trials=int(trials),
                planned=int(planned),
                paused=int(paused),
                search_s=float(search_s),
                card_s=float(card_s) if num_counted == count else None,
                finals=int(finals),
                finals_s=float(finals_s),
                deadline_at=due_at if num_due == count else None,
            )
        )
    answers = (
        select(BatchLadderRow.batch_seq, BatchLadderRow.has_rungs, func.count())
        .where(BatchLadderRow.batch_seq.in_(seqs))
        .group_by(BatchLadderRow.batch_seq, BatchLadderRow.has_rungs)
    )
    answered = {(seq, has_rungs): count for seq, has_rungs, count in session.execute(answers)}
    return [_record(row, found[row.seq], answered) for row in rows]


def _record(row: BatchRow, sums: Sequence[_Sums], answered: dict[tuple[int, bool], int]) -> BatchRecord:
    succeeded = answered.get((row.seq, True), 0)
    card_s = [one.card_s for one in sums if one.card_s is not None]
    deadlines = [one.deadline_at for one in sums if not one.state.is_final]
    return BatchRecord(
        id=row.id,
        target_id=row.target_id,
        owner=row.owner,
        project=row.project,
        created_at=row.created_at,
        cancelled_at=row.cancelled_at,
        counts={one.state: one.jobs for one in sums},
        num_trials=sum(one.trials for one in sums),
        num_planned=sum(one.planned for one in sums),
        num_paused=sum(one.paused for one in sums),
        search_s=sum(one.search_s for one in sums),
        card_s=sum(card_s) if len(card_s) == len(sums) else None,
        num_finals=sum(one.finals for one in sums),
        finals_s=sum(one.finals_s for one in sums),
        deadline_at=None if None in deadlines else max((one for one in deadlines if one is not None), default=None),
        num_ladders=row.num_ladders,
        num_answered=succeeded + answered.get((row.seq, False), 0),
        num_succeeded=succeeded,
    )


def jobs_of(session: Session, batch_id: str, ladder: int | None = None) -> list[tuple[JobRecord, int]]:
    """A batch's jobs, each with its ladder, in search order.

    Raises:
        NotFound: no such batch.
    """
    seq = row_of_batch(session, batch_id).seq
    query = select(JobRow, BatchJobRow.ladder).join(BatchJobRow, BatchJobRow.job_seq == JobRow.seq)
    query = query.where(BatchJobRow.batch_seq == seq, IS_KEPT).order_by(BatchJobRow.position)
    if ladder is not None:
        query = query.where(BatchJobRow.ladder == ladder)
    return [(to_record(row), number) for row, number in session.execute(query)]


def job_page(session: Session, batch_id: str, cursor: str | None, limit: int) -> Page[tuple[JobRecord, int]]:
    """A page of a batch's jobs, each with its ladder, in search order.

    Raises:
        NotFound: no such batch.
        InvalidInput: the cursor belongs to another listing.
    """
    seq, listing = row_of_batch(session, batch_id).seq, f"jobs of {batch_id}"
    query = select(JobRow, BatchJobRow).join(BatchJobRow, BatchJobRow.job_seq == JobRow.seq)
    query = query.where(BatchJobRow.batch_seq == seq, IS_KEPT).order_by(BatchJobRow.position).limit(limit + 1)
    if cursor is not None:
        query = query.where(BatchJobRow.position > decode_cursor(listing, cursor, (int,))[0])
    rows = session.execute(query).all()
    more = encode_cursor(listing, [rows[limit - 1][1].position]) if len(rows) > limit else None
    return Page(items=[(to_record(row), place.ladder) for row, place in rows[:limit]], next_cursor=more)


def events_after(session: Session, batch_id: str, after_id: int, limit: int) -> list[Event]:
    """At most `limit` events of a batch's jobs whose id is above `after_id`, oldest first.

    Raises:
        NotFound: no such batch.
    """
    seq = row_of_batch(session, batch_id).seq
    its_own = select(JobRow.id).join(BatchJobRow, BatchJobRow.job_seq == JobRow.seq).where(BatchJobRow.batch_seq == seq)
    query = select(EventRow).where(EventRow.job_id.in_(its_own), EventRow.id > after_id)
    return [
        Event(id=row.id, job_id=row.job_id, kind=row.kind, at=row.at, data=row.data)
        for row in session.scalars(query.order_by(EventRow.id).limit(limit))
    ]


def open_jobs(session: Session, batch_id: str) -> list[JobRecord]:
    """The open jobs of a batch.

    Raises:
        NotFound: no such batch.
    """
    return [job for job, _ in jobs_of(session, batch_id) if not job.state.is_final]


def fastest(session: Session, job_id: str, limit: int) -> list[Trial]:
    """Our fastest complete trials in a job, without their rounds."""
    ours = [str(kind) for kind in PlanKind if kind.is_ours]
    query = (
        select(TrialRow)
        .where(TrialRow.job_id == job_id, TrialRow.time_us.is_not(None), TrialRow.plan_kind.in_(ours))
        .where(TrialRow.truncated.is_(False))
        .order_by(TrialRow.time_us, TrialRow.number)
        .limit(limit)
        .options(defer(TrialRow.samples))
    )
    return [row_to_trial(row, with_rounds=False) for row in session.scalars(query)]


def cancel(session: Session, batch_id: str, now: float) -> None:
    """Records that its owner cancelled the batch; its jobs are handled separately."""
    row_of_batch(session, batch_id).cancelled_at = now


def advance(session: Session, job_id: str, step: BatchStep) -> JobRecord:
    """Records a job's progress with its ladder."""
    row = row_of(session, job_id)
    row.batch_step = step
    return to_record(row)


def siblings_of(session: Session, job: JobRecord) -> list[JobRecord]:
    """The other jobs in a job's ladder, in the batch that made it."""
    if job.batch_id is None:
        return []
    of_batch = jobs_of(session, job.batch_id)
    ladder = next((number for one, number in of_batch if one.id == job.id), None)
    return [one for one, number in of_batch if number == ladder and one.id != job.id]


#: Whether a job has completed its own trials, and is trying the results of its ladder's other jobs.
_SHARES = (JobRow.state == str(JobState.SEARCHING)) & (JobRow.batch_step > int(BatchStep.SEARCH))


def _behind() -> Select[str, bool]:
    """SQL for a job of a ladder: the ids of the ladder's jobs that are behind it, and whether they are paused."""
    own, place, other = aliased(BatchJobRow), aliased(BatchJobRow), aliased(JobRow)
    still_searches = (other.state == str(JobState.QUEUED)) | (
        (other.state == str(JobState.SEARCHING)) & (func.coalesce(other.batch_step, int(BatchStep.SEARCH)) == 0)
    )
    still_shares = other.state.in_((str(JobState.QUEUED), str(JobState.SEARCHING))) & (
        other.batch_step < int(BatchStep.FINALS)
    )
    return (
        select(other.id, other.is_paused)
        .select_from(own)
        .join(BatchRow, BatchRow.seq == own.batch_seq)
        .join(place, (place.batch_seq == own.batch_seq) & (place.ladder == own.ladder))
        .join(other, other.seq == place.job_seq)
        .where(own.job_seq == JobRow.seq, BatchRow.id == JobRow.batch_id, other.seq != JobRow.seq)
        .where(still_searches | ((JobRow.batch_step == int(BatchStep.FINALS)) & still_shares))
    )


def must_wait() -> ColumnElement[bool]:
    """SQL for a job: whether it has to wait for jobs of its ladder that are behind it."""
    return _SHARES & _behind().exists()


def waits_for(session: Session, job_id: str) -> list[tuple[str, bool]]:
    """The jobs of its ladder that a job waits for, and whether they are paused."""
    found = session.execute(_behind().where(JobRow.id == job_id, _SHARES))
    return sorted((other_id, is_paused) for other_id, is_paused in found)


def is_behind(session: Session, job_id: str) -> bool:
    """Whether a job waits for others of its ladder."""
    return session.scalar(select(JobRow.seq).where(JobRow.id == job_id, must_wait())) is not None


@cache
def _unanswered() -> Select[str, int]:
    """The query of `next_unanswered`, built once, since each idle runner uses it."""
    answer, open_job = aliased(BatchLadderRow), aliased(JobRow)
    place = aliased(BatchJobRow)
    is_answered = select(answer.ladder).where(
        answer.batch_seq == BatchJobRow.batch_seq, answer.ladder == BatchJobRow.ladder
    )
    is_open = (
        select(open_job.seq)
        .join(place, place.job_seq == open_job.seq)
        .where(place.batch_seq == BatchJobRow.batch_seq, place.ladder == BatchJobRow.ladder)
        .where(open_job.state.in_(OPEN_STATES))
    )
    return (
        select(BatchRow.id, BatchJobRow.ladder)
        .join(BatchJobRow, BatchJobRow.batch_seq == BatchRow.seq)
        .where(BatchRow.target_id == bindparam("target_id"), BatchRow.cancelled_at.is_(None))
        .where(~is_answered.exists(), ~is_open.exists())
        .distinct()
        .order_by(BatchRow.id, BatchJobRow.ladder)
    )


def next_unanswered(
    session: Session, target_id: str, besides: Collection[tuple[str, int]] = ()
) -> tuple[str, int] | None:
    """A ladder of a target, by batch and number, that has no result yet and whose jobs have all ended."""
    rows = session.execute(_unanswered(), {"target_id": target_id})
    found = ((str(batch_id), int(ladder)) for batch_id, ladder in rows)
    return next((one for one in found if one not in besides), None)


def answer(session: Session, batch_id: str, number: int, ladder: Ladder, now: float) -> None:
    """Stores the result of a ladder; its artifacts must be registered first."""
    seq = row_of_batch(session, batch_id).seq
    content = ladder_to_json(ladder)
    session.add(
        BatchLadderRow(batch_seq=seq, ladder=number, content=content, has_rungs=bool(ladder.rungs), created_at=now)
    )
    for digest in {kernel.artifact_digest for kernel in ladder.kernels if kernel.artifact_digest}:
        session.merge(BatchKernelRow(batch_seq=seq, digest=digest))


def ladders(session: Session, batch_id: str) -> dict[int, Ladder]:
    """The existing results of a batch's ladders, by number.

    Raises:
        NotFound: no such batch.
    """
    seq = row_of_batch(session, batch_id).seq
    query = select(BatchLadderRow).where(BatchLadderRow.batch_seq == seq).order_by(BatchLadderRow.ladder)
    return {row.ladder: ladder_from_json(row.content) for row in session.scalars(query)}
