"""Who sends a request, and what is allowed: roles, tokens, and the entries of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: How long a dashboard session lasts after the login, seconds.
SESSION_S = 12 * 3600


class Role(StrEnum):
    """What a token allows."""

    #: Reads everything, and changes nothing.
    READ = "read"
    #: Submits jobs, requests inspections and packs, and cancels its own jobs; reads too.
    SUBMIT = "submit"
    #: A machine's program: health, metrics and targets, but no jobs.
    WORKER = "worker"
    #: Everything: the jobs of others, the audit log.
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Whether a token of this role may do what requires `needed`."""
        return needed in _ALLOWED[self]


_ALLOWED: dict[Role, frozenset[Role]] = {
    Role.READ: frozenset({Role.READ, Role.WORKER}),
    Role.SUBMIT: frozenset({Role.READ, Role.WORKER, Role.SUBMIT}),
    Role.WORKER: frozenset({Role.WORKER}),
    Role.ADMIN: frozenset(Role),
}


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token as it is stored: never the secret itself."""

    #: ``tok-`` and 12 hex digits; no secret.
    id: str
    #: Its owner; one owner may have several.
    owner: str
    role: Role
    #: Its purpose, in the owner's words; may be empty.
    note: str
    #: Seconds since the epoch.
    created_at: float
    #: When it expires; None for never.
    expires_at: float | None
    #: When it was revoked; None if it was not.
    revoked_at: float | None

    def is_valid(self, now: float) -> bool:
        """Whether the token is accepted at `now`, in seconds since the epoch."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who sent a request."""

    #: The token's owner; empty if the service has no tokens.
    owner: str
    role: Role
    #: The token's id; empty if there is none.
    token_id: str
    #: Where the request came from; empty for the command line.
    address: str = ""

    def owns(self, owners: tuple[str, ...]) -> bool:
        """Whether the caller may change what belongs to `owners`."""
        return self.role is Role.ADMIN or self.owner in owners


#: Any client of a service without tokens, and anyone working on its database.
LOCAL = Caller(owner="", role=Role.ADMIN, token_id="")


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """Who changed what, and when; written together with the change."""

    #: The entry's number; each entry's is one higher than the last.
    seq: int
    #: Seconds since the epoch.
    at: float
    #: The token's owner and id; empty if the service had no tokens.
    owner: str
    token_id: str
    #: Where the request came from; empty for the command line.
    address: str
    #: A noun and a verb, e.g. ``job.cancel``.
    action: str
    #: Id of what was changed.
    subject: str
