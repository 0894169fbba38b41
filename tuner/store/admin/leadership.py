"""Decides which of several servers runs the jobs: exactly one, and after its death another one.

The kernel releases a file's lock when its process ends. PostgreSQL releases an advisory lock when its connection ends.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, text
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


class Leadership:
    """A lock on the data directory, and with PostgreSQL also one on the database. Used by one thread at a time."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self._directory = directory
        self._engine = engine
        self._file: DirectoryLock | None = None
        self._connection: Connection | None = None
        #: The name under which this leadership is in the audit log.
        self._name = ""

    def take(self) -> None:
        """Takes both locks, or neither.

        Raises:
            StoreError: another server holds one of them.
        """
        if self._file is not None:
            return
        file = DirectoryLock(self._directory)
        try:
            if self._engine.dialect.name == "postgresql":
                self._connection = self._locked_connection()
        except BaseException:
            file.release()
            raise
        self._file = file

    def _locked_connection(self) -> Connection:
        with ExitStack() as until_locked:
            try:
                connection = until_locked.enter_context(self._engine.connect())
                connection.execution_options(isolation_level="AUTOCOMMIT")
                is_ours = connection.execute(text(f"select pg_try_advisory_lock({LEADER_LOCK})")).scalar()
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

    def _drop_connection(self) -> None:
        """Closes the connection, which releases the lock."""
        if self._connection is not None:
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
