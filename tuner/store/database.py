"""The store: one engine, sessions for reading and for writing, and the files beside the database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tuner.errors import StoreError, StoreUnavailable
from tuner.settings import DEFAULT_LOCK_PATIENCE_S
from tuner.store import migrate
from tuner.store.artifacts import ArtifactFolder
from tuner.store.checking import check_file
from tuner.store.directory import DirectoryInUse, DirectoryLock, check_local
from tuner.store.faults import as_store_errors
from tuner.store.gc import Collector, Freed


def _prepare_sqlite(engine: Engine, lock_patience_s: float) -> None:
    """WAL, and transactions that SQLAlchemy begins: the driver's own would commit before DDL."""
    busy_timeout = f"busy_timeout = {round(1000 * lock_patience_s)}"

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        # In WAL mode a commit outlives the process with synchronous=NORMAL; only a power cut may take the last ones.
        for pragma in ("journal_mode = wal", "synchronous = normal", "foreign_keys = on", busy_timeout):
            cursor.execute(f"pragma {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # A transaction that reads first and then writes is refused at once where another one writes: SQLite does not
        # let it wait, since what it read may be stale. One that means to write says so when it begins, and waits.
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("begin immediate" if is_writing else "begin")


def _engine_of(directory: Path, database_url: str | None, lock_patience_s: float) -> Engine:
    """The engine of a directory's database, or of the one at `database_url`."""
    engine = create_engine(database_url or f"sqlite:///{(directory / 'tuner.db').resolve()}")
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine, lock_patience_s)
    return engine


class Store:
    """The tables and artifact files of one data directory; thread-safe.

    Use `open`; every write goes through `write`, one at a time, so that a read inside it cannot go stale.
    """

    def __init__(self, engine: Engine, directory: Path, lock: DirectoryLock | None, lock_patience_s: float) -> None:
        self.directory = directory
        #: Kernel builds, each found by its content; anything in it may be deleted.
        self.build_cache = directory / "build"
        self.artifacts = ArtifactFolder(directory / "artifacts")
        self.engine = engine
        self._writing_engine = engine.execution_options(is_writing=True)
        self._lock = lock
        self._lock_patience_s = lock_patience_s
        self._writer = threading.Lock()
        self._changed = threading.Condition()
        self._num_writes = 0

    @classmethod
    def open(
        cls, directory: Path, database_url: str | None = None, lock_patience_s: float = DEFAULT_LOCK_PATIENCE_S
    ) -> Self:
        """Locks `directory`, opens its database (or the one at `database_url`) and migrates it.

        A write waits up to `lock_patience_s` for another one of this process, and as long for one of a stranger.

        Raises:
            StoreError: a network mount, a second server, an unusable or newer database.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{directory} cannot be made: {error.strerror}; give another --data") from error
        if database_url is None:
            check_local(directory)
        lock = DirectoryLock(directory)
        engine = _engine_of(directory, database_url, lock_patience_s)
        try:
            if database_url is None:
                check_file(engine, directory)
            migrate.upgrade(engine)
        except (SQLAlchemyError, sqlite3.Error, OSError, StoreError) as error:
            engine.dispose()
            lock.release()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the database at {engine.url} cannot be used: {error}") from error
        return cls(engine, directory, lock, lock_patience_s)

    @classmethod
    def open_beside(
        cls, directory: Path, database_url: str | None = None, lock_patience_s: float = DEFAULT_LOCK_PATIENCE_S
    ) -> Self:
        """As `open`; where a server has the directory, the same database beside it, for small reads and writes.

        Raises:
            StoreError: as `open`, or the server is of another version.
        """
        try:
            return cls.open(directory, database_url, lock_patience_s)
        except DirectoryInUse:
            engine = _engine_of(directory, database_url, lock_patience_s)
        try:
            migrate.check_current(engine)
        except (SQLAlchemyError, sqlite3.Error, StoreError) as error:
            engine.dispose()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the database at {engine.url} cannot be used: {error}") from error
        return cls(engine, directory, None, lock_patience_s)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one consistent state.

        Raises:
            StoreUnavailable: the database cannot be read now.
        """
        with as_store_errors(), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """The only writing session; commits at the end, or leaves nothing behind where the block raises.

        Raises:
            StoreUnavailable: the database is locked for too long, or the disk is full; nothing was changed.
        """
        if not self._writer.acquire(timeout=self._lock_patience_s):
            raise StoreUnavailable(f"other writes have not ended for {self._lock_patience_s:g} s; try again later")
        try:
            with as_store_errors(), Session(self._writing_engine) as session, session.begin():
                session.connection()  # begins, and so waits, before the block reads anything
                yield session
        finally:
            self._writer.release()
        with self._changed:
            self._num_writes += 1
            self._changed.notify_all()

    @property
    def num_writes(self) -> int:
        """Commits since the store was opened; hand it to `wait_for_write`."""
        return self._num_writes

    def wait_for_write(self, seen: int, timeout_s: float) -> int:
        """Blocks until there are more than `seen` commits, at most `timeout_s`; answers their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_writes > seen, timeout_s)
            return self._num_writes

    def collect_garbage(self, limit_bytes: int) -> Freed:
        """Bounds what artifacts, builds and samples of ended jobs take; what a result names stays."""
        return Collector(self.read, self.write, self.artifacts, self.build_cache).collect(limit_bytes)

    def ping(self) -> None:
        """Raises:
        StoreUnavailable: the database does not answer.
        """
        with self.read() as session:
            session.execute(text("select 1"))

    def close(self) -> None:
        """Ends the connections and unlocks the directory."""
        self.engine.dispose()
        if self._lock is not None:
            self._lock.release()
