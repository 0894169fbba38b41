"""The store: one engine, sessions for reading and for writing, and the files next to the database."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tuner.errors import StoreError, StoreUnavailable
from tuner.settings import DEFAULT_LOCK_PATIENCE_S
from tuner.store.admin import migrate
from tuner.store.admin.backups import upgrade_with_backup
from tuner.store.admin.checking import check_file
from tuner.store.admin.gc import Collector, Freed
from tuner.store.admin.leadership import RESTART_PATIENCE_S, Leadership
from tuner.store.admin.removal import Sweeper, Swept
from tuner.store.engine.commits import Commits, jobs_with_events
from tuner.store.engine.directory import make_folder
from tuner.store.engine.engines import make_engine, writing
from tuner.store.engine.faults import as_store_errors, words_of
from tuner.store.engine.foreign import ForeignWrites
from tuner.store.results.artifacts import ArtifactFolder
from tuner.store.results.shapes import ShapeIndex

#: How long a server waits for another one that migrates the shared database, seconds.
UPGRADE_PATIENCE_S = 30.0
_ASK_AGAIN_S = 0.1


class Store:
    """The tables and artifact files of one data directory; thread-safe.

    Create it with `open`. All writes go through `write`, one at a time, so that values read in a write stay current.
    """

    def __init__(
        self, engine: Engine, directory: Path, leadership: Leadership, lock_patience_s: float, *, shared: bool
    ) -> None:
        self.directory = directory
        #: Kernel builds, found by content; any of them may be deleted.
        self.build_cache = directory / "build"
        self.artifacts = ArtifactFolder(directory / "artifacts")
        self.engine = engine
        #: Decides which server runs the jobs; if the store is not shared, this one.
        self.leadership = leadership
        #: Finds the nearest results.
        self.shapes = ShapeIndex()
        self._writing_engine = writing(engine)
        self._foreign = ForeignWrites(engine) if shared else None
        self._lock_patience_s = lock_patience_s
        self._writer = threading.Lock()
        #: Signals commits to waiting threads.
        self.commits = Commits(self._foreign)

    @classmethod
    def open(
        cls,
        directory: Path,
        database_url: str | None = None,
        lock_patience_s: float = DEFAULT_LOCK_PATIENCE_S,
        *,
        shared: bool = False,
    ) -> Self:
        """Locks `directory`, opens its database (or the one at `database_url`) and migrates it.

        A write waits up to `lock_patience_s` for another write of this process, and just as long for a write of another
        process. If `shared`, nothing is locked, several servers may have it open, and `leadership` decides which one
        runs the jobs.

        Raises:
            StoreError: `directory` is on a network mount, another server uses it, or the database is unusable or newer.
        """
        make_folder(directory, holds_database=database_url is None)
        engine = make_engine(directory, database_url, lock_patience_s)
        leadership = Leadership(directory, engine)
        try:
            if not shared:
                leadership.take(RESTART_PATIENCE_S)
            if database_url is None:
                check_file(engine, directory)
            if shared:
                _upgrade_shared(engine, leadership, directory)
            else:
                upgrade_with_backup(engine, directory)
                leadership.sign()
        except (SQLAlchemyError, sqlite3.Error, OSError, StoreError) as error:
            leadership.release()
            engine.dispose()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the database at {engine.url!r} cannot be used: {words_of(error)}") from error
        return cls(engine, directory, leadership, lock_patience_s, shared=shared)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one consistent state.

        Raises:
            StoreUnavailable: the database cannot be read now.
        """
        with as_store_errors(), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self, *, brings_work: bool = True) -> Iterator[Session]:
        """A writing session, of which there is only one at a time. It commits at the end, or changes nothing if the
        block raises. `brings_work` says whether an idle runner may have work afterwards.

        Raises:
            StoreUnavailable: the database is locked for too long, or the disk is full; nothing was changed.
        """
        if not self._writer.acquire(timeout=self._lock_patience_s):
            raise StoreUnavailable(f"other writes have been running for {self._lock_patience_s:g} s; try again later")
        try:
            with as_store_errors(), Session(self._writing_engine) as session, session.begin():
                session.connection()  # starts the transaction, and waits if necessary, before the block reads anything
                yield session
                job_ids = jobs_with_events(session)
        finally:
            self._writer.release()
        self.commits.note(job_ids, brings_work=brings_work)

    def collect_garbage(self, limit_bytes: int, spared_s: float = 0.0) -> Freed:
        """Limits the disk space of artifacts, builds and samples of ended jobs. Files of results and everything younger
        than `spared_s` are kept."""
        return Collector(self.read, self.write, self.artifacts, self.build_cache).collect(limit_bytes, spared_s)

    def sweep(self, goes_on: Callable[[], bool] = lambda: True) -> Swept:
        """Removes deleted jobs, until all are gone or `goes_on` is false.

        Raises:
            StoreUnavailable: the database cannot be written now; the next sweep continues.
        """
        with as_store_errors():
            return Sweeper(self.engine, self.read, self.write, self.artifacts).sweep(goes_on)

    def ping(self) -> None:
        """Raises `StoreUnavailable` if the database does not respond."""
        with self.read() as session:
            session.execute(text("select 1"))

    def close(self) -> None:
        """Closes the connections and unlocks the directory."""
        if self._foreign is not None:
            self._foreign.close()
        self.leadership.release()
        self.engine.dispose()


def _upgrade_shared(engine: Engine, leadership: Leadership, directory: Path) -> None:
    """Migrates the tables to this version if needed. If another server is migrating them, waits for it.

    Raises:
        StoreError: a server of a different version uses them.
    """
    end = time.monotonic() + UPGRADE_PATIENCE_S
    while not migrate.is_current(engine):
        try:
            leadership.take()
        except StoreError as error:
            if time.monotonic() < end:
                time.sleep(_ASK_AGAIN_S)
                continue
            found = migrate.revision_of(engine)
            raise StoreError(
                f"the tables at {engine.url!r} are at revision {found}, not at this version's, and another server "
                "uses them; install the same version on both, or stop the other one"
            ) from error
        upgrade_with_backup(engine, directory)
        leadership.release()
