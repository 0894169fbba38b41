"""Opens a database as it is, without migration, whether or not a server is using it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StoreError
from tuner.store.admin.leadership import RESTART_PATIENCE_S, Leadership
from tuner.store.engine.directory import make_folder
from tuner.store.engine.engines import make_engine
from tuner.store.engine.faults import words_of


@contextmanager
def engine_beside_servers(directory: Path, database_url: str | None, lock_patience_s: float) -> Iterator[Engine]:
    """The existing database, for the duration of the block; a server may write to it meanwhile.

    Raises:
        StoreError: the database cannot be used.
    """
    engine = make_engine(directory, database_url, lock_patience_s)
    try:
        yield engine
    except SQLAlchemyError as error:
        raise StoreError(f"the database at {engine.url!r} cannot be used: {words_of(error)}") from error
    finally:
        engine.dispose()


@contextmanager
def locked_engine(directory: Path, database_url: str | None, lock_patience_s: float) -> Iterator[Engine]:
    """Locks `directory`, which is created if missing, and its database for the duration of the block.

    Raises:
        StoreError: a server uses the database, or it cannot be used.
    """
    make_folder(directory, holds_database=database_url is None)
    with engine_beside_servers(directory, database_url, lock_patience_s) as engine:
        leadership = Leadership(directory, engine)
        try:
            leadership.take(RESTART_PATIENCE_S)
            yield engine
        finally:
            leadership.release()
