"""Detects writes of other processes to a shared store."""

from __future__ import annotations

import sqlite3
import threading
import time

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

#: Polling interval for writes of other processes to a shared store, seconds.
POLL_S = 0.2


class ForeignWrites:
    """Tells whether another process has written. May be called from any thread; the database is queried at most twice
    per `POLL_S`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._asked_at = 0.0
        #: A separate connection for SQLite, which tells each connection about the writes of others.
        self._connection = None if engine.dialect.name == "postgresql" else engine.raw_connection()
        self._version = self._ask()

    def have_come(self) -> bool:
        """Whether the database has changed since the last query."""
        with self._lock:
            if time.monotonic() < self._asked_at + POLL_S / 2:
                return False
            before, self._version = self._version, self._ask()
            return self._version != before

    def close(self) -> None:
        """Closes its connection to the database."""
        if self._connection is not None:
            self._connection.close()

    def _ask(self) -> object:
        self._asked_at = time.monotonic()
        try:
            if self._connection is None:
                with self._engine.connect() as connection:
                    return connection.execute(text("select last_value, is_called from events_id_seq")).one()
            cursor = self._connection.cursor()
            cursor.execute("pragma data_version")
            version: object = cursor.fetchone()
            return version
        except (DBAPIError, sqlite3.Error):  # the caller queries the database itself, and gets the error there
            return None
