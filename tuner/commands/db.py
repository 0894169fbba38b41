"""`tuner db`: upgrade, check, backup and restore of the database, and removal of old jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.commands.options import data_option, database_option, settings_of, settings_of_place, settings_of_service
from tuner.core.units import counted

if TYPE_CHECKING:
    from tuner.settings import Settings
    from tuner.store import Store


@click.group()
def db() -> None:
    """The database of a service. Check and backup also work while its server runs; the others need it stopped."""


@db.command()
@data_option
@database_option
def upgrade(**options: Any) -> None:
    """Migrates the tables to this version, after a backup."""
    from tuner.store.admin.backups import upgrade_with_backup
    from tuner.store.admin.migrate import revision_of

    # A misspelled folder is not created; `restore` can create a new one.
    with _locked(options, settings_of_place(options)) as engine:
        backup = upgrade_with_backup(engine, settings_of(options).data)
        if backup is not None:
            click.echo(f"the previous data is in {backup}")
        click.echo(f"the tables are at revision {revision_of(engine)}")


@db.command()
@data_option
@database_option
def check(**options: Any) -> None:
    """Prints the revision of the tables, their numbers of rows, and whether they are consistent.

    A server may run meanwhile.
    """
    from tuner.store.admin.checking import check_tables

    with _beside_servers(options) as engine:
        for line in check_tables(engine):
            click.echo(line)


@db.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@data_option
@database_option
def backup(file: Path, **options: Any) -> None:
    """Writes a consistent copy of all tables to FILE, for SQLite and PostgreSQL alike.

    A server may run meanwhile. Artifacts are files: copy their folder afterwards, so that it contains everything that
    FILE refers to.
    """
    from tuner.store.admin.backups import back_up

    with _beside_servers(options) as engine:
        counts = back_up(engine, file)
    click.echo(f"{file} has {_of_both(counts['jobs'], counts['trials'])}")


@db.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@data_option
@database_option
def restore(file: Path, **options: Any) -> None:
    """Fills an empty database from FILE, and migrates its tables to this version."""
    from tuner.store.admin.backups import restore as fill

    with _locked(options, settings_of(options)) as engine:
        counts = fill(engine, file)
    click.echo(f"restored {_of_both(counts['jobs'], counts['trials'])}")


@db.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@data_option
@database_option
def delete(job_ids: tuple[str, ...], **options: Any) -> None:
    """Deletes ended jobs, with all their data, and shrinks the database."""
    store = _open(options)
    try:
        _delete(store, list(job_ids), "by `tuner db delete`")
    finally:
        store.close()


@db.command()
@click.option("--days", type=click.FloatRange(min=0), help="Delete jobs that ended more than this many days ago.")
@click.option("--keep", type=click.IntRange(min=0), help="Keep only this many of the newest ended jobs.")
@data_option
@database_option
def prune(days: float | None, keep: int | None, **options: Any) -> None:
    """Deletes old jobs, by age or by count, and shrinks the database. Open jobs are kept."""
    from tuner.store.admin.removal import expired

    if days is None and keep is None:
        raise click.UsageError("say what to delete: --days, --keep, or both")
    store = _open(options)
    try:
        before = None if days is None else time.time() - 86400 * days
        with store.read() as session:
            found = expired(session, before=before, num_kept=keep)
        _delete(store, found, "by `tuner db prune`")
    finally:
        store.close()


@contextmanager
def _beside_servers(options: dict[str, Any]) -> Iterator[Any]:
    """The existing database, which a server may be using."""
    from tuner.store.admin.opening import engine_beside_servers

    settings = settings_of_service(options)
    with engine_beside_servers(settings.data, settings.database_url, settings.lock_patience_s) as engine:
        yield engine


@contextmanager
def _locked(options: dict[str, Any], begun: Settings) -> Iterator[Any]:
    """The database, which no server may use meanwhile; it is created if missing."""
    from tuner.store.admin.opening import locked_engine

    with locked_engine(begun.data, begun.database_url, begun.lock_patience_s) as engine:
        yield engine


def _open(options: dict[str, Any]) -> Store:
    from tuner.store import Store

    settings = settings_of_service(options)
    return Store.open(settings.data, settings.database_url, settings.lock_patience_s)


def _delete(store: Store, job_ids: list[str], reason: str) -> None:
    from tuner.core.access.caller import LOCAL
    from tuner.store.access import audit
    from tuner.store.admin.removal import compact, mark

    for begin in range(0, len(job_ids), 20):
        with store.write() as session:
            for job_id in job_ids[begin : begin + 20]:
                mark(session, job_id, time.time(), reason)
                audit.append(session, LOCAL, "job.delete", job_id, time.time())
    swept = store.sweep()
    compact(store.engine)
    click.echo(f"deleted {_of_both(swept.num_jobs, swept.num_trials)}")


def _of_both(num_jobs: int, num_trials: int) -> str:
    return f"{counted(num_jobs, 'job')} and {counted(num_trials, 'trial')}"
