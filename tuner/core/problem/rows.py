"""Rows of a table that other packages may add to, by an entry point.

A package names its row, or a tuple of rows, in its metadata:

    [project.entry-points."tuner.dtypes"]
    e4m3 = "my_package.rows:E4M3"
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar

from tuner.errors import InvalidInput


class _Row(Protocol):
    """What every row has."""

    @property
    def name(self) -> str:
        """As JSON has it."""

    @property
    def number(self) -> int:
        """In packs and in the C API."""


R = TypeVar("R", bound=_Row)


def added_rows(group: str, of: type[R]) -> tuple[R, ...]:
    """The rows that installed packages add to a table, by name.

    Raises:
        InvalidInput: a package cannot be imported, or what it names is no such row.
    """
    found = (row for point in entry_points(group=group) for row in _rows_of(point, of))
    return tuple(sorted(found, key=lambda row: row.name))


def check_rows(group: str, rows: Iterable[R]) -> None:
    """That no two rows have one name or one number.

    Raises:
        InvalidInput: two have.
    """
    seen: dict[str | int, R] = {}
    for row in rows:
        for key in (row.name, row.number):
            if (other := seen.setdefault(key, row)) is not row:
                raise InvalidInput(group, f"{row.name} and {other.name} both are {key!r}", "give each a key of its own")


def _rows_of(point: EntryPoint, of: type[R]) -> tuple[R, ...]:
    where = f"{point.group}: {point.name} = {point.value}"
    try:
        found = point.load()
    except Exception as error:
        raise InvalidInput(where, f"cannot be loaded: {error}", "repair the package, or uninstall it") from error
    rows = found if isinstance(found, tuple) else (found,)
    for row in rows:
        if not isinstance(row, of):
            problem = f"is a {type(row).__name__}"
            raise InvalidInput(where, problem, f"name a {of.__name__}, or a tuple of such")
    return rows
