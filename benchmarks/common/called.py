"""Rows by name, or by a prefix of several names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tuner.errors import InvalidInput


class Named(Protocol):
    """A row of a table, with a name."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


def called(rows: Sequence[R], names: Sequence[str]) -> list[R]:
    """The row with each name, or else the rows with that prefix, in the order of the names, so that the first ones are
    measured even if time is short. All if no name is given.

    Raises:
        InvalidInput: a name is neither a row's nor a prefix of one.
    """
    known = {row.name for row in rows}
    for name in names:
        if not any(one.startswith(name) for one in known):
            raise InvalidInput("row", f"no row's name begins with {name}", f"rows have names like {rows[0].name}")
    by_name = {row.name: row for name in names for row in rows if _is_called(row.name, name, known)}
    return list(by_name.values()) if names else list(rows)


def _is_called(row: str, name: str, known: set[str]) -> bool:
    return row == name if name in known else row.startswith(name)
