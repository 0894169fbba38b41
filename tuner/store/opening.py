"""A database that is worked on while no server has it, whatever its tables are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StoreError
from tuner.store.directory import make_folder
from tuner.store.engines import make_engine
from tuner.store.faults import words_of
from tuner.store.leadership import Leadership


@contextmanager
def locked_engine(directory: Path, database_url: str | None, lock_patience_s: float) -> Iterator[Engine]:
    """Locks `directory` and its database for the length of the block.

    Raises:
        StoreError: a server has it, or it cannot be used.
    """
    make_folder(directory, holds_database=database_url is None)
    engine = make_engine(directory, database_url, lock_patience_s)
    leadership = Leadership(directory, engine)
    try:
        leadership.take()
        yield engine
    except SQLAlchemyError as error:
        raise StoreError(f"the database at {engine.url!r} cannot be used: {words_of(error)}") from error
    finally:
        leadership.release()
        engine.dispose()
