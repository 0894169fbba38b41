"""Explains errors from the database and the disk in sentences."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from tuner.errors import StoreUnavailable

#: Meanings of SQLite's primary result codes. A full quota or a limit on the file size is an I/O error.
_MEANINGS = {
    5: "the database is locked by another program",
    6: "the database is locked by another program",
    8: "the database is read-only",
    10: "the disk cannot be read or written; it may be full",
    11: "the database is damaged",
    13: "the disk is full",
    14: "the database cannot be opened",
    26: "the database is damaged",
}


def meaning_of(error: DBAPIError) -> str:
    """A clause that describes the problem, with the database's own message."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    meaning = None if code is None else _MEANINGS.get(code & 0xFF)
    return f"{meaning} ({error.orig})" if meaning else f"the database does not respond ({error.orig})"


def words_of(error: Exception) -> str:
    """The message of the database driver, without SQLAlchemy's additions for programmers."""
    return str(getattr(error, "orig", None) or error)


@contextmanager
def as_store_errors() -> Iterator[None]:
    """Turns external errors in a block into readable store errors.

    Raises:
        StoreUnavailable: the database cannot be used now.
    """
    try:
        yield
    except (DataError, IntegrityError, ProgrammingError):  # a bug in this program, which another attempt would repeat
        raise
    except DBAPIError as error:
        raise StoreUnavailable(f"{meaning_of(error)}; nothing was changed, try again later") from error
    except sqlite3.Error as error:  # raised by the first statements of a new connection, outside SQLAlchemy
        raise StoreUnavailable(
            f"the database cannot be opened ({error}); nothing was changed, try again later"
        ) from error
    except NoConnectionLeft as error:
        raise StoreUnavailable(f"too many requests use the database at once ({error}); try again later") from error
