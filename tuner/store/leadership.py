"""Which of several servers runs the jobs: exactly one, and another one when it has died, however it died.

The kernel drops a file's lock with its process. PostgreSQL drops an advisory lock with its connection.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tuner.errors import StoreError
from tuner.store.directory import DirectoryLock
from tuner.store.engines import LEADER_LOCK


class Leadership:
    """A lock on the data directory and, with PostgreSQL, one on the database. One thread uses it at a time."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self._directory = directory
        self._engine = engine
        self._file: DirectoryLock | None = None
        self._connection: Connection | None = None

    def take(self) -> None:
        """Takes both locks, or neither.

        Raises:
            StoreError: another server has one of them.
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
        try:
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            is_ours = connection.execute(text(f"select pg_try_advisory_lock({LEADER_LOCK})")).scalar()
        except DBAPIError as error:
            raise StoreError(f"the database at {self._engine.url!r} cannot be used: {error.orig}") from error
        if not is_ours:
            connection.close()
            raise StoreError(
                f"the database at {self._engine.url!r} is in use by another server; stop that one, or add --standby"
            )
        return connection

    @property
    def may_be_lost(self) -> bool:
        """Whether the database can drop its lock while this process lives."""
        return self._engine.dialect.name == "postgresql"

    def is_held(self) -> bool:
        """Whether both locks are still this process's; one that is lost is not taken again by itself."""
        if self._file is None:
            return False
        if self._connection is None:
            return True
        try:
            self._connection.execute(text("select 1"))
        except DBAPIError:
            return False
        return True

    def release(self) -> None:
        """Lets another server in; a second call does nothing."""
        if self._connection is not None:
            if not self._connection.invalidated:
                self._connection.detach()  # into the pool its lock would go with it
            self._connection.close()
            self._connection = None
        if self._file is not None:
            self._file.release()
            self._file = None
