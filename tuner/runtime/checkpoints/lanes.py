"""The layout of codes in each format, as tables for C: `runtime/src/lanes.h`.

python -m tuner.runtime.checkpoints.lanes    writes the file. The tables are found by laying out single codes and
factors with `WeightRow.packed`, so they always agree with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.core.problem.dtype import UNSCALED, Dtype
from tuner.core.problem.weights import WeightFormat, WeightRow
from tuner.runtime.binding.native import FOLDER
from tuner.runtime.checkpoints.bits import Array

HEADER = FOLDER / "src" / "lanes.h"
#: Columns of k in which every layout repeats.
_COLUMNS = 256


def header() -> str:
    """The tables of all formats: the words of 16 bytes whose codes are 0, and for each column, which word holds its
    code and the bits that a code changes there. Formats with equal tables share them.
    """
    tables: dict[str, str] = {}
    lines = [_line(one.row, tables) for one in WeightFormat]
    arrays = [f"static const {kind} {name}[] = {{{text}}};" for (kind, text), name in _named(tables)]
    listed = ",\n".join(f"    {line}" for line in lines)
    formats = f"static const lanes kFormats[] = {{\n{listed},\n}};"
    return "\n".join(["/* Written by `python -m tuner.runtime.checkpoints.lanes`. */", *arrays, formats]) + "\n"


def _named(tables: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Type, numbers and name of each array."""
    for key, name in tables.items():
        kind, _, text = key.partition(":")
        yield (kind, text), name


def _array(tables: dict[str, str], kind: str, numbers: Sequence[int]) -> str:
    """The name of an array of these numbers."""
    lines = [", ".join(f"{one:#x}" for one in numbers[at : at + 16]) for at in range(0, len(numbers), 16)]
    key = f"{kind}:" + (",\n    ".join(lines) if len(lines) > 1 else lines[0])
    return tables.setdefault(key, f"kTable{len(tables)}")


def _line(row: WeightRow, tables: dict[str, str]) -> str:
    base, words, changes = of_codes(row)
    distinct = list(dict.fromkeys(changes))
    raised = ", ".join(f"{_raised(row, dtype):#x}" for dtype in UNSCALED)
    figures = ", ".join(
        map(str, (row.bits, row.chunk, row.group, bundle_of(row), int(row.has_zeros), _factor_bytes(row)))
    )
    arrays = (
        _array(tables, "uint32_t", base),
        _array(tables, "uint8_t", words),
        _array(tables, "uint8_t", [distinct.index(one) for one in changes]),
        _array(tables, "uint32_t", [word for one in distinct for word in one]),
    )
    return f'{{"{row.name}", "{row.layout}", {figures}, {{{raised}}}, {", ".join(arrays)}}}'


def _raised(row: WeightRow, dtype: Dtype) -> int:
    return int(row.raised(np, np.zeros(1, np.uint8), dtype.row)[0]) if row.has_zeros else 0


def _factor(row: WeightRow) -> type[np.unsignedinteger[Any]]:
    """A group's factor, as it is stored."""
    found: type[np.unsignedinteger[Any]] = row.factor_bits(np)
    return found


def _factor_bytes(row: WeightRow) -> int:
    return row.factor_bytes if row.group else 0


def _laid(row: WeightRow, codes: Array, factors: Array | None = None, zeros: Array | None = None) -> Array:
    """All bytes of a tensor."""
    groups = (codes.shape[0], codes.shape[1] // row.group) if row.group else None
    if groups and factors is None:
        factors = np.zeros(groups, _factor(row))
    if groups and row.has_zeros and zeros is None:
        zeros = np.zeros(groups, np.uint16)
    return np.asarray(row.packed(np, codes, factors, zeros)).reshape(-1)


def _first_words(row: WeightRow, codes: Array) -> Array:
    """[rows, 4] the 32-bit words of the first 16 bytes of each row."""
    num_bytes = codes.size * row.bits // 8
    return np.asarray(_laid(row, codes)[:num_bytes].reshape(len(codes), -1)[:, :16].copy().view(np.uint32))


def of_codes(row: WeightRow) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
    """The 32-bit words of 16 bytes whose codes are all 0; and for each of their columns, which word holds its code, and
    the bits that each code changes there."""
    codes = np.zeros((1 << row.bits, _COLUMNS), np.uint8)
    base = _first_words(row, codes)[0].copy()
    places, changes = [], []
    for column in range(row.chunk):
        codes[:, column] = np.arange(1 << row.bits)
        of_column = _first_words(row, codes) ^ base
        codes[:, column] = 0
        (word,) = {int(at) for change in of_column for at in np.flatnonzero(change)}
        places.append(word)
        changes.append(tuple(int(change[word]) for change in of_column))
    return [int(word) for word in base], places, changes


def bundle_of(row: WeightRow) -> int:
    """The number of columns whose factors are adjacent in a row."""
    if not row.group:
        return 0
    factors = np.zeros((2, _COLUMNS // row.group), _factor(row))
    factors[0] = np.arange(1, factors.shape[1] + 1)
    laid = _laid(row, np.zeros((2, _COLUMNS), np.uint8), factors)[2 * _COLUMNS * row.bits // 8 :].view(_factor(row))
    count = next(_run_of(laid))
    return count * row.group


def _run_of(laid: Array) -> Iterator[int]:
    """The length of the run 1, 2, .. at the start."""
    for count, value in enumerate(laid):
        if value != count + 1:
            yield count
    yield len(laid)


def main() -> None:
    """Writes the header."""
    HEADER.write_text(header())
    print(f"wrote {HEADER}", file=sys.stderr)


if __name__ == "__main__":
    main()
