"""Who asks, and who did what, as the service answers it."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import Field

from tuner.core.access.caller import AuditEntry, Role
from tuner.wire.responses import PageView
from tuner.wire.root_path import Link
from tuner.wire.view import View, moment


class CallerView(View):
    """Who sent the request."""

    owner: str = Field(description="whose the token is; empty where the service needs none")
    role: Role = Field(description="what it is good for")
    token_id: str = Field(description="names the token, and is no secret; empty where the service needs none")
    needs_token: bool = Field(description="whether requests need a token here")


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
