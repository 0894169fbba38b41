"""Who asks, and who did what, as the service answers it."""

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
    """Who sent the request."""

    owner: str = Field(description="whose the token is; empty where the service needs none")
    role: Role = Field(description="what it is good for")
    token_id: str = Field(description="names the token, and is no secret; empty where the service needs none")
    needs_token: bool = Field(description="whether requests need a token here")


class TokenRequest(Strict):
    """A token that is requested."""

    owner: str = Field(min_length=1, max_length=64, description="whose it is; jobs submitted with it are theirs")
    role: Annotated[Role, Field(strict=False, description="what it is good for")]
    note: str = Field(default="", max_length=255, description="what it is for")
    days: float | None = Field(default=None, gt=0, le=36500, description="until it expires; null for never")


class TokenView(View):
    """A token, without its secret."""

    id: str
    owner: str
    role: Role
    note: str
    created_at: datetime
    expires_at: datetime | None = Field(description="from then on it is refused; null for never")
    revoked_at: datetime | None = Field(description="since then it is refused; null where nobody revoked it")
    is_valid: bool = Field(description="whether it is taken now")

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
    """A token that was just made."""

    token: TokenView
    secret: str = Field(description="what to send; nobody can ask for it again")


class QuotaRequest(Strict):
    """The most that an owner, or a project, may have."""

    open_jobs: int | None = Field(default=None, ge=0, le=1_000_000, description="queued or under way; null for any")
    card_hours_per_day: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        description="hours for which a card was busy with the trials of the jobs of the last day; null for any",
    )


class QuotaView(View):
    """A quota, and what is used of it."""

    scope: QuotaScope
    name: str = Field(description="the owner's or the project's; `*` for each that has none of its own")
    open_jobs: int | None
    card_hours_per_day: float | None
    used_open_jobs: int | None = Field(description="null for the quota of everybody")
    used_card_hours: float | None = Field(description="of the last day; null for the quota of everybody")

    @classmethod
    def of(cls, quota: Quota, usage: Usage | None) -> Self:
        """Copies both."""
        return cls(
            **{name: getattr(quota, name) for name in ("scope", "name", "open_jobs", "card_hours_per_day")},
            used_open_jobs=usage.open_jobs if usage else None,
            used_card_hours=usage.card_s / 3600 if usage else None,
        )


class AccessPage(View):
    """Tokens and quotas."""

    tokens: list[TokenView] = Field(description="the newest first, those that are taken before the others")
    quotas: list[QuotaView]
    made: NewTokenView | None = Field(description="the token that was just made; null where none was")


class AuditEntryView(View):
    """Who changed what, and when."""

    seq: int = Field(description="grows by one for each entry")
    at: datetime
    owner: str = Field(description="whose token it was; empty where the service knew no tokens")
    token_id: str
    address: str = Field(description="where the request came from; empty for the command line")
    action: str = Field(description="a noun and a verb, e.g. `job.cancel`")
    subject: str = Field(description="id of what was changed")
    page: Link | None = Field(description="where the subject is shown; null where it has no page")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Copies `entry`."""
        names = ("seq", "owner", "token_id", "address", "action", "subject")
        return cls(at=moment(entry.at), page=_page_of(entry.subject), **{name: getattr(entry, name) for name in names})


def _page_of(subject: str) -> str | None:
    """`job-…`, `job-…/7` for a trial, or `batch-…`; a job that was deleted has none, but its entries remain."""
    job, _, number = subject.partition("/")
    if job.startswith("batch-"):
        return f"/ui/batches/{job}"
    if not job.startswith("job-"):
        return None
    return f"/ui/jobs/{job}/trials/{number}" if number else f"/ui/jobs/{job}"


class AuditPage(View):
    """Who changed what, the newest first."""

    entries: PageView[AuditEntryView]
