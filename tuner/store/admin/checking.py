"""Checks that the database of a folder is intact, and belongs to its artifacts."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, inspect, text

from tuner.core.units import counted
from tuner.errors import StoreError
from tuner.store.admin.migrate import revision_of
from tuner.store.engine.directory import DATABASE_FILE

#: Larger files are not checked completely at the start, since that takes seconds per gigabyte.
_MAX_CHECKED_BYTES = 2**30


def check_file(engine: Engine, directory: Path) -> None:
    """Refuses an SQLite database that is damaged, or that is missing or empty although there are artifacts.

    Raises:
        StoreError: the message has the problem and the remedy.
    """
    path = directory / DATABASE_FILE
    is_there = path.exists() and path.stat().st_size > 0
    if is_there and path.stat().st_size <= _MAX_CHECKED_BYTES:
        with engine.connect() as connection:
            found = connection.execute(text("pragma quick_check(1)")).scalar()
        if found != "ok":
            raise StoreError(f"{path} is damaged: {found}; replace it by a backup, or pass another --data")
    if (not is_there or revision_of(engine) is None) and _has_artifacts(directory):
        state = "has no tables" if path.exists() else "is gone"
        raise StoreError(
            f"{path} {state}, but {directory / 'artifacts'} has results of jobs; restore a backup, or "
            "move the folder artifacts away to start from scratch"
        )


def check_tables(engine: Engine) -> list[str]:
    """Checks the tables, and describes their contents in sentences.

    Raises:
        StoreError: the tables are damaged or inconsistent.
    """
    found = revision_of(engine)
    if found is None:
        raise StoreError(f"the database at {engine.url!r} has no tables; `tuner db upgrade` creates them")
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            for word in ("pragma integrity_check(1)", "pragma foreign_key_check"):
                damage = [tuple(row) for row in connection.execute(text(word)) if tuple(row) != ("ok",)]
                if damage:
                    raise StoreError(f"the database at {engine.url!r} is damaged: {damage[0]}; restore a backup")
        all_jobs = "select count(*), coalesce(sum(num_measured + num_rejected + num_failed), 0) from jobs"
        all_trials = "select count(*) from trials"
        if "deleted_at" in {column["name"] for column in inspect(connection).get_columns("jobs")}:
            all_jobs += " where deleted_at is null"  # other jobs may have lost trials already
            all_trials += " join jobs on jobs.id = trials.job_id where jobs.deleted_at is null"
        num_jobs, promised = connection.execute(text(all_jobs)).one()
        num_trials = connection.execute(text(all_trials)).scalar()
    if num_trials != promised:
        raise StoreError(f"the jobs count {counted(promised, 'trial')}, but {num_trials} are stored; restore a backup")
    return [
        f"the tables are at revision {found}",
        f"{counted(num_jobs, 'job')}, {counted(num_trials, 'trial')}: the counts agree",
    ]


def _has_artifacts(directory: Path) -> bool:
    return any(path.is_file() for path in (directory / "artifacts").rglob("*"))
