"""Jobs: what was requested, and their states."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy import insert as sql_insert
from sqlalchemy.orm import Session, lazyload

from tuner.core.trial.job import JobSpec, JobState, JobTerms, check_transition
from tuner.core.trial.ladders.batch import BatchStep
from tuner.core.trial.records import JobRecord, Page
from tuner.errors import Conflict, NotFound
from tuner.store.engine import gathering
from tuner.store.engine.cursors import decode_cursor, encode_cursor
from tuner.store.jobs import events, webhooks
from tuner.store.tables.models import DeletedJobRow, JobLabelRow, JobOwnerRow, JobRow, ResultKeyRow, table_of

#: States of open jobs, in the database's spelling.
OPEN_STATES = tuple(str(state) for state in JobState if not state.is_final)
#: Selects rows that are not deleted.
IS_KEPT = JobRow.deleted_at.is_(None)

_INSERT_JOB = sql_insert(table_of(JobRow))
#: Rows of other tables refer to a job by the number that the database assigns.
_SEQ = select(JobRow.seq).where(JobRow.id == bindparam("job_id")).scalar_subquery()
_INSERT_OWNER = sql_insert(table_of(JobOwnerRow)).values(
    job_seq=_SEQ, owner=bindparam("owner"), since=bindparam("since")
)
_INSERT_LABEL = sql_insert(table_of(JobLabelRow)).values(
    job_seq=_SEQ, label=bindparam("label"), owner=bindparam("owner")
)
_OPEN_AMONG = select(JobRow.problem_digest).where(
    JobRow.problem_digest.in_(bindparam("digests", expanding=True)), JobRow.state.in_(OPEN_STATES)
)
_OPEN_ID = select(JobRow.id).where(JobRow.problem_digest == bindparam("digest"), JobRow.state.in_(OPEN_STATES))
#: Reads owners and labels only when needed.
_ROW = (
    select(JobRow)
    .options(lazyload(JobRow.owners), lazyload(JobRow.labels))
    .where(JobRow.id == bindparam("job_id"), IS_KEPT)
)
_OWNERS = (
    select(JobOwnerRow.owner)
    .where(JobOwnerRow.job_seq == bindparam("seq"))
    .order_by(JobOwnerRow.since, JobOwnerRow.owner)
)
_LABELS = select(JobLabelRow.label).where(JobLabelRow.job_seq == bindparam("seq")).order_by(JobLabelRow.label)
_IS_PAUSED = select(JobRow.is_paused).where(JobRow.id == bindparam("job_id"), IS_KEPT)
_IS_THERE = select(JobRow.seq).where(JobRow.id == bindparam("job_id"), IS_KEPT)
#: The columns that the database returns for a new job.
_INSERTED = (
    "id", "reason", "created_at", "card_s", "priority", "project", "deadline_at", "batch_id", "batch_step"
)  # fmt: skip


def to_record(row: JobRow, *, is_bare: bool = False) -> JobRecord:
    """The domain's view of a row. `bare` leaves out owners and labels, which need another query."""
    return JobRecord(
        id=row.id,
        spec=JobSpec.from_json(row.spec),
        state=JobState(row.state),
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        num_measured=row.num_measured,
        num_rejected=row.num_rejected,
        num_failed=row.num_failed,
        best_us=row.best_us,
        library_us=row.library_us,
        best_speedup=row.best_speedup,
        search_s=row.search_s,
        card_s=row.card_s,
        since_progress=row.since_progress,
        owners=() if is_bare else tuple(one.owner for one in row.owners),
        priority=row.priority,
        project=row.project,
        labels=() if is_bare else tuple(one.label for one in row.labels),
        deadline_at=row.deadline_at,
        is_paused=row.is_paused,
        batch_id=row.batch_id,
        batch_step=row.batch_step,
    )


def row_of(session: Session, job_id: str) -> JobRow:
    """A job's row; raises `NotFound` if there is no such job."""
    row = session.scalar(_ROW, {"job_id": job_id})
    if row is None:
        raise NotFound(_why_absent(session, job_id))
    return row


def check_there(session: Session, job_id: str) -> None:
    """Raises `NotFound` if there is no such job."""
    if session.connection().scalar(_IS_THERE, {"job_id": job_id}) is None:
        raise NotFound(_why_absent(session, job_id))


def is_paused(session: Session, job_id: str) -> bool:
    """Whether a job is paused; raises `NotFound` if there is no such job."""
    found = session.connection().scalar(_IS_PAUSED, {"job_id": job_id})
    if found is None:
        raise NotFound(_why_absent(session, job_id))
    return bool(found)


def _why_absent(session: Session, job_id: str) -> str:
    gone = session.get(DeletedJobRow, job_id)
    if gone is None and job_id.startswith("batch-"):
        return f"there is no job {job_id[:80]!r}: it is a batch; GET /batches/{{batch_id}}/jobs lists its jobs"
    if gone is None:
        return f"there is no job {job_id[:80]!r}; GET /jobs lists all"
    at = datetime.fromtimestamp(gone.deleted_at, UTC).isoformat(timespec="seconds")
    return f"{job_id} was deleted at {at}, with all its data: {gone.reason}"


def insert(
    session: Session,
    spec: JobSpec,
    now: float,
    owner: str = "",
    terms: JobTerms | None = None,
    batch_id: str | None = None,
) -> JobRecord:
    """A new job, queued. `owner` is who submitted it, if known; `batch_id` is its batch, if any."""
    terms = terms or JobTerms()
    labels = tuple(sorted(set(terms.labels)))
    job = JobRecord(
        id=f"job-{secrets.token_hex(6)}",
        spec=spec,
        state=JobState.QUEUED,
        reason="",
        created_at=now,
        started_at=None,
        finished_at=None,
        num_measured=0,
        num_rejected=0,
        num_failed=0,
        best_us=None,
        library_us=None,
        search_s=0.0,
        card_s=0.0,
        owners=(owner,) if owner else (),
        priority=terms.priority,
        project=terms.project,
        labels=labels,
        deadline_at=None if terms.deadline_s is None else now + terms.deadline_s,
        batch_id=batch_id,
        batch_step=None if batch_id is None else BatchStep.SEARCH,
    )
    # Uses the tables: hundreds of jobs may arrive per second, and session objects would cost more than the database.
    session.flush()
    values = {name: getattr(job, name) for name in _INSERTED} | {
        "spec": spec.to_json(),
        "problem_digest": spec.problem_digest,
        "target_id": spec.target_id,
        "state": str(job.state),
        "op_kinds": " ".join(spec.workload.needs),
    }
    gathering.add(session, _INSERT_JOB, values)
    if owner:
        gathering.add(session, _INSERT_OWNER, {"job_id": job.id, "owner": owner, "since": now})
    for label in labels:
        gathering.add(session, _INSERT_LABEL, {"job_id": job.id, "label": label, "owner": owner})
    events.append(session, job.id, "state", now, {"state": str(job.state), "reason": ""})
    return job


def attach(session: Session, job_id: str, owner: str, terms: JobTerms, now: float) -> JobRecord:
    """Another request for an open job's problem: `owner`, if known, shares its run. The labels of `terms` are added,
    and the higher priority applies. Other terms do not change.

    Raises:
        NotFound: no such job.
    """
    row = row_of(session, job_id)
    if owner and all(one.owner != owner for one in row.owners):
        row.owners.append(JobOwnerRow(owner=owner, since=now))
    known = {one.label for one in row.labels}
    row.labels.extend(JobLabelRow(label=label, owner=owner) for label in sorted(set(terms.labels) - known))
    row.priority = max(row.priority, terms.priority)
    session.flush()
    session.expire(row, ["labels"])  # so that they are in order when read again
    return to_record(row)


def num_labels_of(session: Session, job_id: str, owner: str) -> int:
    """The number of a job's labels from an owner."""
    given = (JobRow.id == job_id, JobLabelRow.owner == owner)
    query = select(func.count()).select_from(JobLabelRow).join(JobRow, JobRow.seq == JobLabelRow.job_seq).where(*given)
    return session.scalar(query) or 0


def detach(session: Session, job_id: str, owner: str) -> JobRecord:
    """Removes `owner` from the owners of a job's run, which continues.

    Raises:
        NotFound: no such job.
    """
    row = row_of(session, job_id)
    row.owners = [one for one in row.owners if one.owner != owner]
    return to_record(row)


def get(session: Session, job_id: str) -> JobRecord:
    """A job; raises `NotFound` if there is no such job."""
    row = row_of(session, job_id)  # pending rows must be written before they are read
    connection, of_job = session.connection(), {"seq": row.seq}
    # Uses the tables: the relation would create a statement and mapper objects, which takes three times as long.
    owners, labels = connection.scalars(_OWNERS, of_job), connection.scalars(_LABELS, of_job)
    return replace(to_record(row, is_bare=True), owners=tuple(owners), labels=tuple(labels))


def find_open(session: Session, problem_digest: str) -> JobRecord | None:
    """The open job for a problem, or None."""
    # Only looks for the job's id at first, through the table, since a new problem has no job.
    session.flush()
    job_id = session.connection().scalar(_OPEN_ID, {"digest": problem_digest})
    return None if job_id is None else get(session, job_id)


def open_among(session: Session, problem_digests: Collection[str]) -> set[str]:
    """The problems that have an open job, found with one query."""
    return set(session.connection().scalars(_OPEN_AMONG, {"digests": list(problem_digests)}))


def find_succeeded(session: Session, problem_digest: str) -> JobRecord | None:
    """The job that solved a problem best, as `GET /best` would choose it."""
    is_solved = JobRow.state == str(JobState.SUCCEEDED)
    query = select(JobRow).outerjoin(ResultKeyRow, ResultKeyRow.job_id == JobRow.id)
    query = query.where(JobRow.problem_digest == problem_digest, is_solved, IS_KEPT)
    gain, num_trials = ResultKeyRow.sure_speedup, ResultKeyRow.num_trials
    best_first = (gain.desc().nulls_last(), num_trials.desc().nulls_last(), JobRow.seq.desc())
    row = session.scalar(query.order_by(*best_first).limit(1))
    return to_record(row) if row else None


def counts_by_state(session: Session) -> dict[tuple[str, str], int]:
    """Jobs by target and state."""
    query = select(JobRow.target_id, JobRow.state, func.count()).group_by(JobRow.target_id, JobRow.state)
    return {(target_id, state): count for target_id, state, count in session.execute(query.where(IS_KEPT))}


def oldest_queued(session: Session) -> dict[str, float]:
    """When each target's oldest queued job was requested."""
    query = select(JobRow.target_id, func.min(JobRow.created_at)).where(JobRow.state == str(JobState.QUEUED))
    return {row[0]: row[1] for row in session.execute(query.group_by(JobRow.target_id))}


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Which jobs a listing contains; None means any."""

    state: JobState | None = None
    owner: str | None = None
    project: str | None = None
    label: str | None = None
    target_id: str | None = None
    #: The batch that made the jobs.
    batch_id: str | None = None
    #: Sizes of the first op; for an FFN pair, its first product.
    m: int | None = None
    n: int | None = None
    k: int | None = None

    @property
    def listing(self) -> str:
        """The name of the listing in its cursors."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return f"jobs {json.dumps(given, sort_keys=True)}"

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """The filter as SQL."""
        yield IS_KEPT
        named = ("state", "project", "target_id", "batch_id")
        columns = {name: getattr(JobRow, name) for name in named}
        for name, column in columns.items():
            if (value := getattr(self, name)) is not None:
                yield column == str(value)
        if self.owner is not None:
            yield JobRow.owners.any(JobOwnerRow.owner == self.owner)
        if self.label is not None:
            yield JobRow.labels.any(JobLabelRow.label == self.label)
        for size in "mnk":
            if (value := getattr(self, size)) is not None:
                yield JobRow.spec["workload"]["ops"][0][size].as_integer() == value


def page(session: Session, cursor: str | None, limit: int, chosen: JobFilter) -> Page[JobRecord]:
    """Jobs, newest first."""
    query = select(JobRow).where(*chosen.conditions()).order_by(JobRow.seq.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(JobRow.seq < decode_cursor(chosen.listing, cursor, (int,))[0])
    rows = session.scalars(query).all()
    more = encode_cursor(chosen.listing, [rows[limit - 1].seq]) if len(rows) > limit else None
    return Page(items=[to_record(row) for row in rows[:limit]], next_cursor=more)


def set_paused(session: Session, job_id: str, is_paused: bool, now: float) -> JobRecord:
    """Pauses or resumes an open job, and adds the event.

    Raises:
        NotFound: no such job.
        Conflict: the job has ended.
    """
    row = row_of(session, job_id)
    if row.state not in OPEN_STATES:
        again = "" if row.state == JobState.SUCCEEDED else "; :retry submits it again"
        raise Conflict(f"{job_id} has ended ({row.state}), and can neither be paused nor resumed{again}")
    if row.is_paused != is_paused:
        row.is_paused = is_paused
        events.append(session, job_id, "state", now, {"state": row.state, "reason": "paused" if is_paused else ""})
    return to_record(row)


def set_state(session: Session, job_id: str, state: JobState, now: float, reason: str = "") -> JobRecord:
    """Moves a job to its next state, and adds the event.

    Raises:
        NotFound: no such job.
        Conflict: the transition is not legal.
    """
    row = row_of(session, job_id)
    check_transition(JobState(row.state), state)
    row.state, row.reason = str(state), reason
    if row.started_at is None and state is JobState.SEARCHING:
        row.started_at = now
    if state.is_final:
        row.finished_at = now
        webhooks.job_ended(session, job_id, now)
    events.append(session, job_id, "state", now, {"state": str(state), "reason": reason})
    return to_record(row)


def held_finals(session: Session, job_id: str, finals_s: float) -> None:
    """Records how long a job's finals took.

    Raises:
        NotFound: no such job.
    """
    row_of(session, job_id).finals_s = finals_s
