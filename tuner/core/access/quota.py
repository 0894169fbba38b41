"""Limits for an owner or a project."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.core.access.names import is_name
from tuner.errors import InvalidInput

#: Name of the quota that applies to every owner, or every project, that has none of its own.
EVERY = "*"
#: Card time is counted over the jobs submitted within this window, seconds.
WINDOW_S = 24 * 3600.0


class QuotaScope(StrEnum):
    """Whose jobs a quota counts."""

    OWNER = "owner"
    PROJECT = "project"


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one owner or project."""

    scope: QuotaScope
    #: The owner's or the project's name, or `EVERY`.
    name: str
    #: Maximum number of queued or running jobs; None for no limit.
    open_jobs: int | None
    #: Maximum card hours that the trials of the last day's jobs may use; None for no limit.
    card_hours_per_day: float | None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise InvalidInput(
                "name", f"{self.name[:80]!r} is not a valid name", "use 1 to 64 printable characters, or `*`"
            )
        if self.open_jobs is None and self.card_hours_per_day is None:
            raise InvalidInput("open_jobs", "no limit was set", "set open_jobs, card_hours_per_day, or both")
        if self.open_jobs is not None and not 0 <= self.open_jobs <= 1_000_000:
            raise InvalidInput("open_jobs", f"must be 0 to 1000000, got {self.open_jobs}", "20 is a reasonable value")
        if self.card_hours_per_day is not None and not 0 <= self.card_hours_per_day <= 1e6:
            problem = f"must be 0 to 1000000, got {self.card_hours_per_day:g}"
            raise InvalidInput("card_hours_per_day", problem, "4 is a reasonable value")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The current usage of an owner or project."""

    #: Jobs that are queued or running.
    open_jobs: int
    #: Card seconds used by the trials of the last day's jobs.
    card_s: float

    def excess(self, quota: Quota, who: str) -> str:
        """Why `who` may not submit one more job; empty if they may."""
        if quota.open_jobs is not None and self.open_jobs >= quota.open_jobs:
            count = f"{self.open_jobs} open job{'' if self.open_jobs == 1 else 's'}"
            return f"{who} already has {count}, and the quota is {quota.open_jobs}; wait until one ends, or cancel one"
        hours = quota.card_hours_per_day
        if hours is not None and self.card_s >= hours * 3600:
            used = f"in the last day, the jobs of {who} used {self.card_s / 3600:.2f} card hours"
            return f"{used}, and the quota is {hours:g}; submit again later"
        return ""
