"""The store: one engine, sessions for reading and for writing, and the files beside the database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tuner.errors import StoreError
from tuner.store import migrate
from tuner.store.artifacts import ArtifactFolder
from tuner.store.directory import DirectoryLock, check_local
from tuner.store.gc import Freed, collect


def _prepare_sqlite(engine: Engine) -> None:
    """WAL, and transactions that SQLAlchemy begins: the driver's own would commit before DDL."""

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        # In WAL mode a commit outlives the process with synchronous=NORMAL; only a power cut may take the last ones.
        for pragma in ("journal_mode = wal", "synchronous = normal", "foreign_keys = on", "busy_timeout = 10000"):
            cursor.execute(f"pragma {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("begin")


class Store:
    """The tables and artifact files of one data directory; thread-safe.

    Use `open`; every write goes through `write`, one at a time, so that a read inside it cannot go stale.
    """

    def __init__(self, engine: Engine, directory: Path, lock: DirectoryLock) -> None:
        self.directory = directory
        #: Kernel builds, each found by its content; anything in it may be deleted.
        self.build_cache = directory / "build"
        self.artifacts = ArtifactFolder(directory / "artifacts")
        self.engine = engine
        self._lock = lock
        self._writer = threading.Lock()
        self._changed = threading.Condition()
        self._num_writes = 0

    @classmethod
    def open(cls, directory: Path, database_url: str | None = None) -> Self:
        """Locks `directory`, opens its database (or the one at `database_url`) and migrates it.

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
        engine = create_engine(database_url or f"sqlite:///{(directory / 'tuner.db').resolve()}")
        if engine.dialect.name == "sqlite":
            _prepare_sqlite(engine)
        try:
            migrate.upgrade(engine)
        except (SQLAlchemyError, StoreError) as error:
            engine.dispose()
            lock.release()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the database at {engine.url} cannot be used: {error}") from error
        return cls(engine, directory, lock)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one consistent state."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """The only writing session; commits at the end, or leaves nothing behind where the block raises."""
        with self._writer, Session(self.engine) as session, session.begin():
            yield session
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
        with self.write() as session:
            return collect(session, self.artifacts, self.build_cache, limit_bytes)

    def ping(self) -> None:
        """Raises:
        StoreError: the database does not answer.
        """
        try:
            with self.read() as session:
                session.execute(text("select 1"))
        except SQLAlchemyError as error:
            raise StoreError(f"the database does not answer: {error}") from error

    def close(self) -> None:
        """Ends the connections and unlocks the directory."""
        self.engine.dispose()
        self._lock.release()
