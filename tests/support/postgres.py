"""A private PostgreSQL server in a temporary folder, run by an ordinary user, reachable only by its socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from tuner.store.admin import migrate
from tuner.store.engine.engines import make_engine

#: Debian's folder of the programs of each version.
PROGRAMS = Path("/usr/lib/postgresql")
USER = "postgres"


class PostgreSQL:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num_databases = 0
        #: The name of the database that new ones with tables are copies of.
        self._migrated: str | None = None
        #: Root may not run the server.
        self._as_user: dict[str, Any] = {"user": USER} if os.geteuid() == 0 else {}

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of its programs to the end."""
        newest = max(PROGRAMS.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
        command = [str(newest), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=180, **self._as_user
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        fast = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=16MB"
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} {fast}"
        self.run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", "data", "-m", "immediate", "-W", "stop")

    def stop_in_order(self) -> None:
        """Closes all connections. Committed data is kept, which `stop` does not guarantee here."""
        self.run("pg_ctl", "-D", "data", "-m", "fast", "-w", "stop")

    def database(self) -> str:
        """The URL of a new, empty database."""
        return self._created("template1")

    def migrated_database(self) -> str:
        """The URL of a new database with empty tables. It is a copy of one that the migrations created, since they take
        most of the time of opening a store."""
        if self._migrated is None:
            url = self.database()
            engine = make_engine(self.folder, url, 10.0)
            migrate.upgrade(engine)
            engine.dispose()
            self._migrated = f"tuner{self._num_databases}"
        return self._created(self._migrated)

    def _created(self, template: str) -> str:
        self._num_databases += 1
        name = f"tuner{self._num_databases}"
        engine = create_engine(self._url("postgres", "postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"create database {name} template {template}"))
        engine.dispose()
        return self._url(name, "postgresql")

    def _url(self, name: str, scheme: str) -> str:
        return f"{scheme}://{USER}@/{name}?host={self.folder}"


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """A server for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-pg-"))  # a socket's path must be short
    server = PostgreSQL(folder)
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        server.run("initdb", "-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
