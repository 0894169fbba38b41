"""Decides which of several servers runs the jobs: exactly one, and after its death another one.

The kernel releases a file's lock when its process ends. PostgreSQL releases an advisory lock when the session ends,
which is a moment after its connection is closed, or long after if the network has lost the connection.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tuner.core.access.caller import LOCAL
from tuner.errors import StoreError, StoreUnavailable
from tuner.store.access import audit
from tuner.store.engine.directory import DirectoryLock, sign_of_life
from tuner.store.engine.engines import LEADER_LOCK, writing
from tuner.store.engine.faults import as_store_errors

#: The name of an audit log entry for the start of a leadership.
_ACTION = "server.lead"
#: Maximum time for which PostgreSQL may keep the lock of a server that was killed just before this one was started.
RESTART_PATIENCE_S = 1.0
#: Maximum time for the end of a session of this server that the network has lost.
_REGAIN_PATIENCE_S = 5.0
_ASK_AGAIN_S = 0.05

#: Identifies a session of the database; a process id alone may be in use again after a restart of the database.
_OWN_SESSION = text("select pid, backend_start from pg_stat_activity where pid = pg_backend_pid()")
_END_SESSION = text(
    "select pg_terminate_backend(pid) from pg_stat_activity where pid = :pid and backend_start = :backend_start"
)


class Leadership:
    """A lock on the data directory, and with PostgreSQL also one on the database. Used by one thread at a time."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self._directory = directory
        self._engine = engine
        self._file: DirectoryLock | None = None
        self._connection: Connection | None = None
        #: Process id and start of the session that has, or had, the database's lock.
        self._session: Row[Any] | None = None
        #: The name under which this leadership is in the audit log.
        self._name = ""

    def take(self, patience_s: float = 0.0) -> None:
        """Takes both locks, or neither. Waits up to `patience_s` for the database's.

        Raises:
            StoreError: another server holds one of them.
        """
        if self._file is not None:
            return
        file = DirectoryLock(self._directory)
        try:
            if self._engine.dialect.name == "postgresql":
                self._connection = self._locked_connection(patience_s)
        except BaseException:
            file.release()
            raise
        self._file = file

    def _locked_connection(self, patience_s: float = 0.0) -> Connection:
        end = time.monotonic() + patience_s
        with ExitStack() as until_locked:
            try:
                connection = until_locked.enter_context(self._engine.connect())
                connection.execution_options(isolation_level="AUTOCOMMIT")
                attempt = text(f"select pg_try_advisory_lock({LEADER_LOCK})")
                while not (is_ours := connection.execute(attempt).scalar()) and time.monotonic() < end:
                    time.sleep(_ASK_AGAIN_S)
                if is_ours:
                    self._session = connection.execute(_OWN_SESSION).one()
            except DBAPIError as error:
                raise StoreUnavailable(f"the database at {self._engine.url!r} cannot be used: {error.orig}") from error
            if is_ours:
                until_locked.pop_all()
        if not is_ours:
            raise StoreError(
                f"the database at {self._engine.url!r} is in use by another server; stop that one, or add --standby"
            )
        return connection

    @property
    def may_be_lost(self) -> bool:
        """Whether the database can release its lock while this process is alive."""
        return self._engine.dialect.name == "postgresql"

    def is_held(self) -> bool:
        """Whether this process still holds both locks; `regain` takes a lost one again."""
        if self._file is None:
            return False
        if self._connection is None:
            return not self.may_be_lost
        try:
            self._connection.execute(text("select 1"))
        except DBAPIError:
            return False
        return True

    def beat(self) -> None:
        """Updates the heartbeat for standby servers, if this server leads. May be called from any thread."""
        if (file := self._file) is not None:
            with suppress(OSError):  # an unwritable folder is reported elsewhere
                file.beat()

    def sign_of_life(self) -> tuple[str, int]:
        """The leader's process id, and the time of its last heartbeat; only changes of the latter matter."""
        return sign_of_life(self._directory)

    @property
    def directory(self) -> Path:
        """The folder that servers share."""
        return self._directory

    def sign(self) -> None:
        """Records the new leader, if a leadership can be lost; the tables must exist. Called once after `take`.

        Raises:
            StoreUnavailable: the database cannot be written now.
        """
        if not self.may_be_lost:
            return
        self._name = f"{socket.gethostname()[:40]} {os.getpid()} {secrets.token_hex(4)}"
        with as_store_errors(), Session(writing(self._engine)) as session, session.begin():
            audit.append(session, LOCAL, _ACTION, self._name, time.time())

    def regain(self) -> bool:
        """Takes the lock again after the database has released it; returns whether the database responds.

        Raises:
            StoreError: another server has it, or had it in the meantime, so this server's state may be outdated.
        """
        self._drop_connection()
        try:
            self._end_lost_session()
            connection = self._locked_connection()
        except StoreUnavailable:
            return False
        self._connection = connection
        try:
            with as_store_errors(), Session(self._engine) as session:
                last = audit.last_subject(session, _ACTION)
        except StoreUnavailable:
            return False
        if last != self._name:
            raise StoreError(f"another server has run the jobs in the meantime: {last}")
        return True

    def _end_lost_session(self) -> None:
        """Ends this server's earlier session, which still has the lock if only the network has lost it."""
        if self._session is None:
            return
        end = time.monotonic() + _REGAIN_PATIENCE_S
        with as_store_errors(), self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            while connection.execute(_END_SESSION, dict(self._session._mapping)).first() and time.monotonic() < end:
                time.sleep(_ASK_AGAIN_S)

    def _drop_connection(self) -> None:
        """Releases the lock and closes the connection."""
        if self._connection is not None:
            if not self._connection.invalidated:
                with suppress(DBAPIError):  # the session of a lost connection ends later
                    self._connection.execute(text(f"select pg_advisory_unlock({LEADER_LOCK})"))
            if not self._connection.invalidated:
                self._connection.detach()  # in the pool, the connection would keep the lock
            self._connection.close()
            self._connection = None

    def release(self) -> None:
        """Releases both locks for another server; a second call does nothing."""
        self._drop_connection()
        if self._file is not None:
            self._file.release()
            self._file = None
