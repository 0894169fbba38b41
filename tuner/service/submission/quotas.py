"""Limits per owner or project, set by admins and checked for each new job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tuner.core.access.caller import Caller, Role
from tuner.core.access.quota import EVERY, Quota, QuotaScope, Usage
from tuner.errors import Forbidden
from tuner.service.submission.authorization import REMEMBERED_S
from tuner.store import Session, Store
from tuner.store.access import audit, quotas
from tuner.store.engine.gathering import write_now


class Quotas:
    """The quotas of one store; thread-safe. Admins have no limits."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        #: A cache, so that submissions need no query, and the monotonic clock's time when it was read.
        self._seen: dict[tuple[QuotaScope, str], Quota] = {}
        self._seen_at = float("-inf")

    def every(self) -> list[tuple[Quota, Usage | None]]:
        """Each quota, and its usage; None for quotas that apply to everybody."""
        with self._store.read() as session:
            now = self._clock()
            return [
                (one, None if one.name == EVERY else quotas.usage(session, one.scope, one.name, now))
                for one in quotas.every(session)
            ]

    def put(self, quota: Quota, caller: Caller) -> None:
        """Sets a quota; other servers apply it at most a second later."""
        with self._store.write() as session:
            quotas.put(session, quota)
            audit.append(session, caller, "quota.set", f"{quota.scope}/{quota.name}"[:64], self._clock())
        self._forget()

    def drop(self, scope: QuotaScope, name: str, caller: Caller) -> None:
        """Removes a quota.

        Raises:
            NotFound: there is no such quota.
        """
        with self._store.write() as session:
            quotas.drop(session, scope, name)
            audit.append(session, caller, "quota.drop", f"{scope}/{name}"[:64], self._clock())
        self._forget()

    def check(self, session: Session, caller: Caller, project: str) -> None:
        """In a writing session: checks that another job of `caller` is within the quotas of the caller and the project.

        Raises:
            Forbidden: the job would exceed a quota; the message names the quota and the remedy.
        """
        if caller.role is Role.ADMIN:
            return
        known = self._known(session)
        for scope, name in ((QuotaScope.OWNER, caller.owner), (QuotaScope.PROJECT, project)):
            quota = known.get((scope, name)) or known.get((scope, EVERY))
            if not name or quota is None:
                continue
            write_now(session)  # jobs from the same transaction count, too
            who = name if scope is QuotaScope.OWNER else f"the project {name}"
            excess = quotas.usage(session, scope, name, self._clock()).excess(quota, who)
            if excess:
                raise Forbidden(f"{excess}, or ask an admin for more")

    def _known(self, session: Session) -> dict[tuple[QuotaScope, str], Quota]:
        with self._lock:
            if time.monotonic() - self._seen_at > REMEMBERED_S:
                self._seen = {(one.scope, one.name): one for one in quotas.every(session)}
                self._seen_at = time.monotonic()
            return self._seen

    def _forget(self) -> None:
        with self._lock:
            self._seen_at = float("-inf")
