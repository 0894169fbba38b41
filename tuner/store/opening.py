"""A database that is worked on while no server has it, whatever its tables are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import StoreError
from tuner.store.directory import make_folder
from tuner.store.engines import make_engine
from tuner.store.faults import words_of
from tuner.store.leadership import Leadership


@contextmanager
def locked_engine(
    directory: Path, database_url: str | None, lock_patience_s: float, *, makes_folder: bool = True
) -> Iterator[Engine]:
    """Locks `directory` and its database for the length of the block. Without `makes_folder` nothing is made: no server
    uses a folder that is not there, and the database has a lock of its own.

    Raises:
        StoreError: a server has it, or it cannot be used.
    """
    with ExitStack() as stack:
        folder = directory
        if makes_folder:
            make_folder(directory, holds_database=database_url is None)
        elif not directory.is_dir():
            folder = Path(stack.enter_context(TemporaryDirectory()))
        engine = make_engine(directory, database_url, lock_patience_s)
        leadership = Leadership(folder, engine)
        stack.callback(engine.dispose)
        stack.callback(leadership.release)
        try:
            leadership.take()
            yield engine
        except SQLAlchemyError as error:
            raise StoreError(f"the database at {engine.url!r} cannot be used: {words_of(error)}") from error
