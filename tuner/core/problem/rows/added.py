"""Rows of a table to which other packages can add, through an entry point.

A package names its row, or a tuple of rows, in its metadata:

    [project.entry-points."tuner.dtypes"]
    e5m2 = "my_package.rows:E5M2"

A broken package adds nothing. Requests for its row get the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

from tuner.core.problem.interface import ANY_FAULT, fields_problem, reason_of

#: The first number for rows of packages, so that they never collide with later versions of the program.
FIRST_ADDED_NUMBER = 128
#: The C API takes numbers as int32.
_LAST_NUMBER = 2**31 - 1
#: Names of rows, in JSON, in lists and in the C API.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class _Row(Protocol):
    """Common members of all rows."""

    @property
    def name(self) -> str:
        """Its name in JSON."""

    @property
    def number(self) -> int:
        """Its number in packs and in the C API."""


R = TypeVar("R", bound=_Row)

#: Why rows cannot be used, by table and name.
_broken: dict[tuple[str, str], str] = {}
#: The rows of packages, by table and name, e.g. ``dtype:e5m2``.
_added: dict[str, _Row] = {}


def added_rows(group: str, of: type[R], own: Sequence[_Row]) -> tuple[R, ...]:
    """The rows that installed packages add to a table with the program's `own`, sorted by number."""
    taken: dict[object, str] = {key: row.name for row in own for key in (row.name, row.number)}
    found: list[R] = []
    for point in sorted(entry_points(group=group), key=lambda one: (one.name, one.value)):
        for row in _rows_of(point, of):
            if problem := _problem(row, taken):
                _broken[group, row.name] = f"{point.value}: {problem}"
                continue
            taken |= {row.name: row.name, row.number: row.name}
            found.append(row)
            _added[f"{group.removeprefix('tuner.').removesuffix('s')}:{row.name}"] = row
    return tuple(sorted(found, key=lambda row: row.number))


def row_versions() -> dict[str, int]:
    """The number of each row that packages add, keyed by `table:name`, as workers announce them. A package that changes
    the meaning of a row must rename it."""
    return {name: row.number for name, row in _added.items()}


def needed_rows(values: Iterable[Any]) -> set[str]:
    """Names, in the form that workers announce, of the rows of packages that are the ``row`` of one of `values`."""
    rows = [getattr(value, "row", None) for value in values] if _added else []
    return {name for name, row in _added.items() if any(one is row for one in rows)}


def check_broken(group: str, name: object) -> None:
    """Raises with the reason if a package should have provided the row called `name` but could not.

    Raises:
        ValueError: a package should have provided the row.
    """
    if reason := _broken.get((group, str(name))):
        raise ValueError(f"{name!r} of {group} cannot be used: {reason}")


def _problem(row: _Row, taken: dict[object, str]) -> str:
    if not _NAME.fullmatch(row.name):
        return "its name is not one of at most 40 lower-case letters, digits and underscores, with a letter first"
    if row.name in taken:
        return f"a different row is also called {row.name}"
    if row.number in taken:
        return f"its number {row.number} is already used by {taken[row.number]}"
    if row.number < FIRST_ADDED_NUMBER:
        return f"its number is {row.number}; those of packages begin at {FIRST_ADDED_NUMBER}"
    if row.number > _LAST_NUMBER:
        return f"its number is {row.number}; the largest is {_LAST_NUMBER}"
    return ""


def _rows_of(point: EntryPoint, of: type[R]) -> Iterator[R]:
    try:
        found = point.load()
    except ANY_FAULT as error:
        _broken[point.group, point.name] = f"{point.value} cannot be imported: {reason_of(error, __file__)}"
        return
    for row in found if isinstance(found, tuple | list) else (found,):
        if not isinstance(row, of):
            _broken[point.group, point.name] = f"{point.value} is a {type(row).__name__}, not a {of.__name__}"
        elif problem := fields_problem(row):
            named = row.name if isinstance(row.name, str) else point.name
            _broken[point.group, named] = f"{point.value} {problem}"
        else:
            yield row
