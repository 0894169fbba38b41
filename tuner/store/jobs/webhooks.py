"""Webhooks: who is notified of the end of a job, and the state of each notification. They are rows, so that a restart
loses none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tuner.core.trial.records import Webhook, WebhookState
from tuner.store.tables.models import WebhookRow


def _to_record(row: WebhookRow) -> Webhook:
    return Webhook(
        seq=row.seq,
        job_id=row.job_id,
        owner=row.owner,
        url=row.url,
        host=row.host,
        state=WebhookState(row.state),
        num_attempts=row.num_attempts,
        due_at=row.due_at,
        ended_at=row.ended_at,
        reason=row.reason,
    )


def ask(session: Session, job_id: str, owner: str, url: str, *, has_ended: bool, now: float) -> None:
    """Notifies `url` of the end of a job, immediately if it `has_ended`; repeated requests count once."""
    same = (WebhookRow.job_id == job_id, WebhookRow.owner == owner, WebhookRow.url == url)
    if session.scalar(select(WebhookRow.seq).where(*same)) is not None:
        return
    state, due_at = (WebhookState.DUE, now) if has_ended else (WebhookState.WAITING, None)
    host = urlsplit(url).netloc.lower()
    session.add(WebhookRow(job_id=job_id, owner=owner, url=url, host=host, state=str(state), due_at=due_at))


def job_ended(session: Session, job_id: str, now: float) -> None:
    """Makes the job's webhooks due."""
    waiting = (WebhookRow.job_id == job_id, WebhookRow.state == str(WebhookState.WAITING))
    session.execute(update(WebhookRow).where(*waiting).values(state=str(WebhookState.DUE), due_at=now))


def drop(session: Session, job_id: str, owner: str) -> None:
    """Removes the webhooks of `owner`, who no longer owns the job."""
    session.execute(delete(WebhookRow).where(WebhookRow.job_id == job_id, WebhookRow.owner == owner))


def of_job(session: Session, job_id: str) -> list[Webhook]:
    """All webhooks of a job."""
    query = select(WebhookRow).where(WebhookRow.job_id == job_id).order_by(WebhookRow.seq)
    return [_to_record(row) for row in session.scalars(query)]


def next_due(
    session: Session, now: float, longest_s: float, besides: Collection[str], besides_urls: Collection[str] = ()
) -> Webhook | None:
    """The webhook that has been due for longest, excluding hosts in `besides` and URLs in `besides_urls`. No pause is
    longer than `longest_s`: a later due time means that the clock was set back, so the webhook is due now."""
    is_due = WebhookRow.due_at.is_not(None) & ((WebhookRow.due_at <= now) | (WebhookRow.due_at > now + longest_s))
    query = select(WebhookRow).where(is_due, WebhookRow.host.not_in(besides), WebhookRow.url.not_in(besides_urls))
    row = session.scalar(query.order_by(WebhookRow.due_at, WebhookRow.seq).limit(1))
    return None if row is None else _to_record(row)


def delivered(session: Session, seq: int, now: float) -> None:
    """The receiver has accepted it."""
    done = {"state": str(WebhookState.DELIVERED), "due_at": None, "ended_at": now, "reason": ""}
    _count(session, seq, done)


def postpone(session: Session, seq: int, due_at: float, reason: str) -> None:
    """Records a failed attempt that will be followed by another."""
    _count(session, seq, {"due_at": due_at, "reason": reason[:255]})


def give_up(session: Session, seq: int, now: float, reason: str) -> None:
    """Records that the last attempt failed."""
    over = {"state": str(WebhookState.FAILED), "due_at": None, "ended_at": now, "reason": reason[:255]}
    _count(session, seq, over)


def _count(session: Session, seq: int, values: Mapping[str, object]) -> None:
    """Counts an attempt; does nothing if the webhook's job was deleted."""
    attempts = {"num_attempts": WebhookRow.num_attempts + 1}
    session.execute(update(WebhookRow).where(WebhookRow.seq == seq).values(**values, **attempts))
