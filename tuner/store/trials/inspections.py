"""Inspections of trials: requested, started at most `MAX_ATTEMPTS` times, and ended with a result or a reason."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, undefer

from tuner.core.trial.outcome import Metric
from tuner.core.trial.records import Inspection, InspectionKind, InspectionState
from tuner.core.trial.reports.inspection import CounterReport, EnergyReport, Trace
from tuner.store.jobs.jobs import IS_KEPT
from tuner.store.tables.compressed import pack, unpack_counters, unpack_energy, unpack_trace
from tuner.store.tables.models import InspectionRow, JobRow

#: Maximum number of times that an inspection is started, including attempts during which a process or worker ended.
MAX_ATTEMPTS = 2


_UNPACKED: dict[InspectionKind, Callable[[bytes], CounterReport | EnergyReport | Trace]] = {
    InspectionKind.ENERGY: unpack_energy,
    InspectionKind.COUNTERS: unpack_counters,
    InspectionKind.TRACE: unpack_trace,
}


def _to_record(row: InspectionRow, *, whole: bool = False) -> Inspection:
    kind, refusal = InspectionKind(row.kind), row.refusal
    packed = row.result if whole else None
    result = None if packed is None else _UNPACKED[kind](packed)
    return Inspection(
        seq=row.seq,
        job_id=row.job_id,
        trial_number=row.trial_number,
        kind=kind,
        metrics=None if row.metrics is None else tuple(row.metrics),
        state=InspectionState(row.state),
        num_attempts=row.num_attempts,
        reason=row.reason,
        refusal=None if refusal is None else (refusal[0], refusal[1], refusal[2]),
        figures=tuple(Metric(tag=tag, unit=unit, value=value) for tag, unit, value in row.figures or ()),
        asked_at=row.asked_at,
        finished_at=row.finished_at,
        result=result,
    )


def ask(
    session: Session,
    job_id: str,
    trial_number: int,
    kind: InspectionKind,
    metrics: tuple[str, ...] | None,
    *,
    is_urgent: bool,
    now: float,
) -> tuple[Inspection, bool]:
    """Requests an inspection; also returns whether it is still pending.

    If it is pending or has a result, a repeated request returns it again; otherwise it is retried.
    """
    wanted = None if metrics is None else list(metrics)
    rows = session.scalars(_of_trial(job_id, trial_number, kind))
    row = next((row for row in rows if row.metrics == wanted), None)
    if row is None:
        row = InspectionRow(
            job_id=job_id, trial_number=trial_number, kind=str(kind), metrics=wanted, is_urgent=is_urgent
        )
        row.state = str(InspectionState.PENDING)
        session.add(row)
    elif row.state in (InspectionState.FAILED, InspectionState.REFUSED) or (row.finished_at and row.reason):
        row.state, row.num_attempts, row.is_urgent = str(InspectionState.PENDING), 0, is_urgent
        row.reason, row.refusal, row.figures, row.finished_at = "", None, None, None
        row.result, row.result_bytes = None, 0
    row.asked_at = now
    row.is_urgent = row.is_urgent or is_urgent
    session.flush()
    return _to_record(row), row.state == InspectionState.PENDING


def _of_trial(job_id: str, trial_number: int, kind: InspectionKind) -> Select[InspectionRow]:
    """A trial's inspections of one kind, the most recently requested first."""
    return (
        select(InspectionRow)
        .where(
            InspectionRow.job_id == job_id,
            InspectionRow.trial_number == trial_number,
            InspectionRow.kind == str(kind),
        )
        .order_by(InspectionRow.asked_at.desc(), InspectionRow.seq.desc())
    )


def newest(session: Session, job_id: str, trial_number: int, kind: InspectionKind) -> Inspection | None:
    """A trial's most recently requested inspection of one kind, with its result; None if there is none."""
    row = session.scalar(_of_trial(job_id, trial_number, kind).options(undefer(InspectionRow.result)).limit(1))
    return None if row is None else _to_record(row, whole=True)


def of_trials(session: Session, job_id: str, numbers: Collection[int]) -> list[Inspection]:
    """All inspections of some of a job's trials, without their results, in the order of the requests."""
    query = select(InspectionRow).where(InspectionRow.job_id == job_id, InspectionRow.trial_number.in_(numbers))
    return [_to_record(row) for row in session.scalars(query.order_by(InspectionRow.seq))]


def next_pending(
    session: Session, target_id: str, *, urgent_only: bool, besides: Collection[int] = ()
) -> Inspection | None:
    """The inspection that a runner of a target should perform: those requested by clients come first, those already
    started last.
    """
    query = (
        select(InspectionRow)
        .join(JobRow, JobRow.id == InspectionRow.job_id)
        .where(
            InspectionRow.state == str(InspectionState.PENDING),
            JobRow.target_id == target_id,
            IS_KEPT,
            InspectionRow.seq.not_in(besides),
        )
        .order_by(InspectionRow.is_urgent.desc(), InspectionRow.num_attempts, InspectionRow.seq)
    )
    if urgent_only:
        query = query.where(InspectionRow.is_urgent)
    row = session.scalar(query.limit(1))
    return None if row is None else _to_record(row)


def _row(session: Session, seq: int) -> InspectionRow:
    """An inspection's row; if its job was deleted, a row that is never saved."""
    return session.get(InspectionRow, seq) or InspectionRow(num_attempts=0)


def begin(session: Session, seq: int) -> None:
    """Counts an attempt before the worker gets it, so that an attempt that never ends counts, too."""
    _row(session, seq).num_attempts += 1


def put_back(session: Session, seq: int) -> None:
    """Takes back an attempt that did not fail, but was interrupted because the service stopped."""
    _row(session, seq).num_attempts -= 1


def finish(
    session: Session, seq: int, result: CounterReport | EnergyReport | Trace, figures: Collection[Metric], now: float
) -> None:
    """Stores the result, or the reason why there is none."""
    row = _row(session, seq)
    row.state, row.finished_at, row.reason = str(InspectionState.DONE), now, result.reason
    row.result = pack(result)
    row.result_bytes = len(row.result)
    row.figures = [[figure.tag, figure.unit, figure.value] for figure in figures]


def refuse(session: Session, seq: int, refusal: tuple[str, str, str], now: float) -> None:
    """Ends an impossible inspection; `refusal` has the field, the problem and the remedy."""
    row = _row(session, seq)
    row.state, row.finished_at, row.refusal = str(InspectionState.REFUSED), now, list(refusal)


def fail(session: Session, seq: int, reason: str, now: float) -> None:
    """Ends an inspection that failed."""
    row = _row(session, seq)
    row.state, row.finished_at, row.reason = str(InspectionState.FAILED), now, reason
