"""Rows by name, or by the beginning of several names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tuner.errors import InvalidInput


class Named(Protocol):
    """A row of a table."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


def called(rows: Sequence[R], names: Sequence[str]) -> list[R]:
    """The row of each name, or, where no row has it, the rows whose names begin with it, in the order in which they are
    named: where time is short the first comes first. All where no name is given.

    Raises:
        InvalidInput: a name is that of no row, nor the beginning of one.
    """
    known = {row.name for row in rows}
    for name in names:
        if not any(one.startswith(name) for one in known):
            raise InvalidInput("row", f"no row's name begins with {name}", f"a row is called like {rows[0].name}")
    by_name = {row.name: row for name in names for row in rows if _is_called(row.name, name, known)}
    return list(by_name.values()) if names else list(rows)


def _is_called(row: str, name: str, known: set[str]) -> bool:
    return row == name if name in known else row.startswith(name)
