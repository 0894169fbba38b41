"""Looks up the owner of a secret in the database, and caches it briefly, so that most requests need no query."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tuner.core.access.caller import AuditEntry, Caller, Role, Token
from tuner.core.trial.records import Page
from tuner.service.paging import check_limit
from tuner.store import Store
from tuner.store.access import audit, ended_sessions, tokens

#: Maximum time until a token or session that another process revoked or ended is refused, seconds.
REMEMBERED_S = 1.0
#: Seconds of a day.
DAY_S = 24 * 3600.0
#: Maximum number of cached tokens.
_MAX_REMEMBERED = 10_000


class Access:
    """The tokens of one store; thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time, *, always_asks: bool = False) -> None:
        """`always_asks` refuses requests without a token, even if no token was ever created."""
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        #: By the secret's digest, or by the token's id and session: the token, and the monotonic clock's time when it
        #: was looked up.
        self._seen: dict[str, tuple[Token, float]] = {}
        self._is_on = always_asks
        self._asked_at = float("-inf")
        self._session_key: bytes | None = None

    @property
    def is_on(self) -> bool:
        """Whether a token is required: always, once the first one has been created."""
        if self.is_known_to_be_on is None:
            with self._store.read() as session:
                self._is_on = tokens.has_any(session)
            self._asked_at = time.monotonic()
        return self._is_on

    @property
    def is_known_to_be_on(self) -> bool | None:
        """The result of `is_on` if it is cached, otherwise None."""
        return None if not self._is_on and time.monotonic() - self._asked_at > REMEMBERED_S else self._is_on

    def remembered(self, secret: str) -> Token | None:
        """The result of `by_secret` if it is cached, otherwise None."""
        with self._lock:
            token, at = self._seen.get(tokens.digest_of(secret), (None, float("-inf")))
        is_fresh = token is not None and time.monotonic() - at <= REMEMBERED_S
        return token if token is not None and is_fresh and token.is_valid(self._clock()) else None

    def by_secret(self, secret: str) -> Token | None:
        """The valid token that has a secret; None for any other string."""
        return self._valid(tokens.digest_of(secret), lambda: self._find(secret))

    def by_session(self, token_id: str, proof: str) -> Token | None:
        """The valid token of a dashboard session whose random word is `proof`; None if the session was ended."""
        return self._valid(f"{token_id} {proof}", lambda: self._get(token_id, proof))

    def end_session(self, caller: Caller, token_id: str, proof: str) -> None:
        """Ends a session; other servers refuse it within `REMEMBERED_S`."""
        with self._store.write() as session:
            if ended_sessions.end(session, proof, now := self._clock()):
                audit.append(session, caller, "session.end", token_id, now)
        with self._lock:
            self._seen.pop(f"{token_id} {proof}", None)

    def _find(self, secret: str) -> Token | None:
        with self._store.read() as session:
            return tokens.find(session, secret)

    def _get(self, token_id: str, proof: str) -> Token | None:
        with self._store.read() as session:
            return None if ended_sessions.is_ended(session, proof) else tokens.get(session, token_id)

    def _valid(self, key: str, ask_store: Callable[[], Token | None]) -> Token | None:
        now = time.monotonic()
        with self._lock:
            token, at = self._seen.get(key, (None, float("-inf")))
        if token is None or now - at > REMEMBERED_S:
            token = ask_store()
            with self._lock:
                self._seen.pop(key, None)
                if token is not None:
                    while len(self._seen) >= _MAX_REMEMBERED:
                        self._seen.pop(next(iter(self._seen)))
                    self._seen[key] = token, now
        return token if token is not None and token.is_valid(self._clock()) else None

    def tokens(self) -> list[Token]:
        """All tokens ever created, oldest first."""
        with self._store.read() as session:
            return tokens.every(session)

    def make_token(self, caller: Caller, owner: str, role: Role, note: str, days: float | None) -> tuple[Token, str]:
        """A new token, valid for `days` days or forever, and its secret, which cannot be read again.

        Raises:
            InvalidInput: the owner or the note is too long, or the owner is not a plain name.
        """
        now = self._clock()
        with self._store.write() as session:
            expires_at = None if days is None else now + days * DAY_S
            made, secret = tokens.create(session, owner, role, now, note=note, expires_at=expires_at)
            audit.append(session, caller, "token.create", made.id, now)
        self._asked_at = float("-inf")
        return made, secret

    def revoke_token(self, caller: Caller, token_id: str) -> Token:
        """Revokes a token; other servers refuse it within `REMEMBERED_S`.

        Raises:
            NotFound: no such token.
        """
        with self._store.write() as session:
            revoked = tokens.revoke(session, token_id, now := self._clock())
            audit.append(session, caller, "token.revoke", token_id, now)
        with self._lock:
            self._seen.clear()
        return revoked

    def note(self, caller: Caller, action: str, subject: str) -> None:
        """Adds an entry to the audit log for an action that changed no row."""
        with self._store.write() as session:
            audit.append(session, caller, action, subject, self._clock())

    def entries(self, *, cursor: str | None = None, limit: int = 100) -> Page[AuditEntry]:
        """The audit log, the newest entry first.

        Raises:
            InvalidInput: the cursor belongs to another listing, or the limit is out of range.
        """
        check_limit(limit)
        with self._store.read() as session:
            return audit.page(session, cursor, limit)

    @property
    def session_key(self) -> bytes:
        """The key for signing dashboard sessions: random, and stored in the data folder, readable only by its owner."""
        with self._lock:
            if self._session_key is None:
                self._session_key = _kept_key(self._store.directory / "session.key")
            return self._session_key


def _kept_key(path: Path) -> bytes:
    """The key at `path`, which is created if it does not exist."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if key := path.read_bytes():
            return key
        descriptor = os.open(path, os.O_WRONLY)  # the disk was full when it was created
    key = secrets.token_hex(32).encode()
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    return key
