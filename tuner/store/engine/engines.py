"""Engines for SQLite and PostgreSQL, configured to behave alike: one transaction writes, others wait."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from tuner.errors import StoreError
from tuner.private import make_private_file
from tuner.store.engine.directory import DATABASE_FILE
from tuner.versions import install_command

#: Numbers of our advisory locks in PostgreSQL, which are separate for each database: for writing, and for running the
#: jobs.
WRITER_LOCK = 0x74756E01
LEADER_LOCK = 0x74756E02


def make_engine(directory: Path, database_url: str | None, lock_patience_s: float) -> Engine:
    """The engine of `database_url`, by default SQLite in `directory`. A transaction with the execution option
    `is_writing` waits up to `lock_patience_s` for another one to end.

    Raises:
        StoreError: `database_url` is not a URL, or the database is not supported, or its driver is not installed.
    """
    url = _url(directory, database_url)
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url)
            _prepare_sqlite(engine, lock_patience_s)
        elif url.drivername == "postgresql+psycopg":
            engine = _postgresql(url, lock_patience_s)
        else:
            raise StoreError(f"{url.drivername} is not supported; use SQLite or postgresql://")
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise StoreError(f"the driver of {url.drivername} is missing: {install_command('postgres')}") from error
    return engine


def has_database(directory: Path, database_url: str | None = None) -> bool:
    """Whether the file of an SQLite database exists; True for other databases, where only the server knows.

    Raises:
        StoreError: `database_url` is not a URL.
    """
    url = _url(directory, database_url)
    return url.get_backend_name() != "sqlite" or Path(url.database or "").is_file()


def _url(directory: Path, database_url: str | None) -> URL:
    if database_url is None:  # the name of a folder may contain % or ?, which need quoting in a URL
        return URL.create("sqlite", database=str((directory / DATABASE_FILE).resolve()))
    try:
        return make_url(database_url)
    except ArgumentError as error:
        raise StoreError(
            f"{database_url!r} is not a database URL; use postgresql://USER@HOST/NAME, or leave it out"
        ) from error


def _prepare_sqlite(engine: Engine, lock_patience_s: float) -> None:
    """WAL mode, and transactions that SQLAlchemy starts, since the driver would commit before DDL. Free pages of a new
    file can be released a few at a time."""
    busy_timeout = f"busy_timeout = {round(1000 * lock_patience_s)}"

    @event.listens_for(engine, "do_connect")
    def make_file(_dialect: Any, _record: Any, arguments: list[Any], _options: Any) -> None:
        if not str(arguments[0]).startswith((":", "file:")):
            with suppress(OSError):  # SQLite reports the problem
                make_private_file(Path(arguments[0]))  # its log gets the same mode

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"pragma {busy_timeout}")
        if cursor.execute("pragma page_count").fetchone() == (0,):
            cursor.execute("pragma auto_vacuum = incremental")  # for an existing file this would take the writer lock
        # In WAL mode with synchronous=NORMAL, commits survive the process; only a power failure may lose the last ones.
        for pragma in ("journal_mode = wal", "synchronous = normal", "foreign_keys = on"):
            cursor.execute(f"pragma {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # A transaction that reads before it writes is refused immediately while another one writes: SQLite does not let
        # it wait, since its snapshot may be outdated. A transaction that will write says so when it begins, and waits.
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("begin immediate" if is_writing else "begin")


def _postgresql(url: Any, lock_patience_s: float) -> Engine:
    """A reading transaction sees one state. A writing transaction first takes the writer lock, so that its reads cannot
    become outdated; it must not see a state from before it had the lock."""
    options = f"-c lock_timeout={round(1000 * lock_patience_s)}"
    engine = create_engine(
        url,
        isolation_level="REPEATABLE READ",
        pool_pre_ping=True,
        connect_args={"options": options, "connect_timeout": max(2, round(lock_patience_s))},
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        if connection.get_execution_options().get("is_writing", False):
            connection.exec_driver_sql(f"select pg_advisory_xact_lock({WRITER_LOCK})")

    return engine


def writing(engine: Engine) -> Engine:
    """The same engine with writing transactions."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(is_writing=True, isolation_level="READ COMMITTED")
    return engine.execution_options(is_writing=True)
