"""The syntax for numbers of rows on a command line."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import click

#: Digits of a number of rows that no service accepts, and characters of a wrong value in a message.
_DIGITS, _SHOWN = 20, 60


def row_counts(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | tuple[int, ...] | None:
    """A number, or several in ascending order without duplicates: `16`, `1,2,4`, or `8..256` for 8, 16, 32 and so on up
    to 256.

    Raises:
        click.BadParameter: it is not in one of these forms.
    """
    if value is None:
        return None
    found: set[int] = set()
    for part in value.split(","):
        # Python refuses to read thousands of digits.
        ends = [int(end) if end.strip().isdecimal() and len(end) < _DIGITS else 0 for end in part.split("..")]
        if len(ends) > 2 or not all(ends) or ends[0] > ends[-1]:
            raise click.BadParameter(
                f"{value[:_SHOWN]!r} is not a list of rows; use positive numbers like 16, 1,2,4 or 8..256"
            )
        m = ends[0]
        while m < ends[-1]:
            found.add(m)
            m *= 2
        found.add(ends[-1])
    rows = tuple(sorted(found))
    return rows if len(rows) > 1 else rows[0]


def with_between(rows: Iterable[int]) -> tuple[int, ...]:
    """The rows, and midpoints between them: after a gap, half of the larger number, and so on. Without a measurement, a
    kernel serves no fewer than half of its rows plus one; the library serves the rest."""
    found = set(rows)
    for fewer, more in pairwise(sorted(found)):
        while (more := more // 2) > fewer:
            found.add(more)
    return tuple(sorted(found))
