"""Whether the database of a folder is the one that its artifacts belong to, and in one piece."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, text

from tuner.errors import StoreError
from tuner.store.migrate import revision_of

#: A larger file is not read through at the start, which would take seconds for each gigabyte.
_MAX_CHECKED_BYTES = 2**30


def check_file(engine: Engine, directory: Path) -> None:
    """Refuses an SQLite database that is damaged, or that is new or empty where artifacts show that one was there.

    Raises:
        StoreError: what is wrong, and what to do.
    """
    path = directory / "tuner.db"
    is_there = path.exists() and path.stat().st_size > 0
    if is_there and path.stat().st_size <= _MAX_CHECKED_BYTES:
        with engine.connect() as connection:
            found = connection.execute(text("pragma quick_check(1)")).scalar()
        if found != "ok":
            raise StoreError(f"{path} is damaged: {found}; put a backup in its place, or give another --data")
    if (not is_there or revision_of(engine) is None) and _has_artifacts(directory):
        state = "has no tables" if path.exists() else "is gone"
        raise StoreError(
            f"{path} {state}, but {directory / 'artifacts'} holds what its jobs found; put a backup in its place, "
            "or, to begin anew, move the folder artifacts away"
        )


def _has_artifacts(directory: Path) -> bool:
    return any(path.is_file() for path in (directory / "artifacts").rglob("*"))
