"""The caller's identity, and the audit log, in responses."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field

from tuner.core.access.caller import AuditEntry, Role, Token
from tuner.core.access.quota import Quota, QuotaScope, Usage
from tuner.wire.base.fields import Strict
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View, moment
from tuner.wire.responses.responses import PageView


class CallerView(View):
    """The sender of the request."""

    owner: str = Field(description="owner of the token; empty if the service needs no token")
    role: Role = Field(description="its permissions")
    token_id: str = Field(description="identifies the token, and is not secret; empty if the service needs no token")
    needs_token: bool = Field(description="whether this service requires tokens")


class TokenRequest(Strict):
    """A requested token."""

    owner: str = Field(min_length=1, max_length=64, description="its owner, who also owns the jobs submitted with it")
    role: Annotated[Role, Field(strict=False, description="its role")]
    note: str = Field(default="", max_length=255, description="its purpose, as text")
    days: float | None = Field(default=None, gt=0, le=36500, description="days until it expires; null for never")


class TokenView(View):
    """A token, without its secret."""

    id: str
    owner: str
    role: Role
    note: str
    created_at: datetime
    expires_at: datetime | None = Field(description="when it expires; null for never")
    revoked_at: datetime | None = Field(description="when it was revoked; null if it was not")
    is_valid: bool = Field(description="whether it is accepted now")

    @classmethod
    def of(cls, token: Token, now: float) -> Self:
        """Copies `token`; `now` is in seconds since the epoch."""
        return cls(
            created_at=moment(token.created_at),
            expires_at=None if token.expires_at is None else moment(token.expires_at),
            revoked_at=None if token.revoked_at is None else moment(token.revoked_at),
            **{name: getattr(token, name) for name in ("id", "owner", "role", "note")},
            is_valid=token.is_valid(now),
        )


class NewTokenView(View):
    """A newly created token."""

    token: TokenView
    secret: str = Field(description="the secret to send; it is shown only once")


class QuotaRequest(Strict):
    """The limits of an owner or a project."""

    open_jobs: int | None = Field(
        default=None, ge=0, le=1_000_000, description=("maximum queued and running jobs; null for any number")
    )
    card_hours_per_day: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        description="maximum hours in a day for which cards are busy with trials of these jobs; null for no limit",
    )


class QuotaView(View):
    """A quota, and its usage."""

    scope: QuotaScope
    name: str = Field(description="the owner or the project; `*` for all without their own quota")
    open_jobs: int | None
    card_hours_per_day: float | None
    used_open_jobs: int | None = Field(description="null for the default quota")
    used_card_hours: float | None = Field(description="in the last day; null for the default quota")

    @classmethod
    def of(cls, quota: Quota, usage: Usage | None) -> Self:
        """Copies a quota and its usage."""
        return cls(
            **{name: getattr(quota, name) for name in ("scope", "name", "open_jobs", "card_hours_per_day")},
            used_open_jobs=usage.open_jobs if usage else None,
            used_card_hours=usage.card_s / 3600 if usage else None,
        )


class AccessPage(View):
    """Tokens and quotas."""

    tokens: list[TokenView] = Field(description="newest first, valid ones before the others")
    quotas: list[QuotaView]
    made: NewTokenView | None = Field(description="the token that was just created; null if none was")


class AuditEntryView(View):
    """Who changed what, and when."""

    seq: int = Field(description="increases by one for each entry")
    at: datetime
    owner: str = Field(description="owner of the token; empty if the service had no tokens")
    token_id: str
    address: str = Field(description="where the request came from; empty for the command line")
    action: str = Field(description="a noun and a verb, e.g. `job.cancel`")
    subject: str = Field(description="id of the changed object")
    page: Link | None = Field(description="page of the subject; null if it has none")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Copies `entry`."""
        names = ("seq", "owner", "token_id", "address", "action", "subject")
        return cls(at=moment(entry.at), page=_page_of(entry.subject), **{name: getattr(entry, name) for name in names})


def _page_of(subject: str) -> str | None:
    """The subject is `job-…`, `job-…/7` for a trial, or `batch-…`. A deleted job has no page, but its entries are
    kept.
    """
    job, _, number = subject.partition("/")
    if job.startswith("batch-"):
        return f"/ui/batches/{job}"
    if not job.startswith("job-"):
        return None
    return f"/ui/jobs/{job}/trials/{number}" if number else f"/ui/jobs/{job}"


class AuditPage(View):
    """Who changed what, newest first."""

    entries: PageView[AuditEntryView]
