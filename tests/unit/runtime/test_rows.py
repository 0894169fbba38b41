"""The C runtime has the same numbers of rows as the program."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import ELEMENTS
from tuner.runtime.binding import native
from tuner.runtime.binding.rows import HEADER, header


def test_each_row_has_its_number_in_the_header() -> None:
    """C programs refer to rows only by these numbers."""
    every: list[Any] = [*ELEMENTS.values(), *(one.row for one in Activation)]
    rows = [row for row in every if not row.is_added]
    assert len(rows) >= 8
    assert {row.name: native.HEADER.constants[f"TUNER_{row.name.upper()}"] for row in rows} == {
        row.name: row.number for row in rows
    }


def test_the_table_of_the_c_runtime_is_that_of_the_rows() -> None:
    assert HEADER.read_text() == header(own_alone=True), "run `python -m tuner.runtime.binding.rows`"
