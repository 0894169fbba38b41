"""Whether an element type's row converts correctly, since a kernel and its check would agree if both had the same
fault.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tuner.core.problem.rows.dtype import OperandRow
from tuner.errors import WorkerError

#: Number of random codes for types with more than 16 bits.
_NUM_DRAWN = 1 << 16
#: Bits of a float32's mantissa.
_MANTISSA = 23


@lru_cache(maxsize=16)
def check_row(row: OperandRow) -> None:
    """Checks that every value stays the same, that a number between two values goes to the nearer one within the row's
    roundoff, that a NaN stays one, and that codes have the row's size.

    Raises:
        WorkerError: a value is converted wrongly, with the row, the value and the result.
    """
    kind = np.dtype(row.bits_name)
    random = np.random.default_rng(0)
    codes = np.arange(1 << row.bits) if row.bits <= 16 else random.integers(0, 1 << row.bits, _NUM_DRAWN)
    with np.errstate(all="ignore"):
        values = row.from_bits(np, codes.astype(kind)).astype(np.float64)
        values = np.unique(values[np.isfinite(values)])
        gaps = np.diff(values)
        for share, wanted in ((0.0, values[:-1]), (0.25, values[:-1]), (0.75, values[1:])):
            _check(row, kind, (values[:-1] + share * gaps) if row.bits <= 16 else wanted, wanted)
        if row.bits > 16:
            _check_neighbours(row)
        nan = row.from_bits(np, np.asarray(row.to_bits(np, np.full(1, np.nan, np.float32)))).astype(np.float64)
    if not np.isnan(nan).all():
        raise WorkerError(f"dtype {row.name}: to_bits turns a NaN into {nan[0]}")


def _check_neighbours(row: OperandRow) -> None:
    """For types with too many codes to try all: for close numbers, at every distance and around every power of two,
    none is converted to a value that is farther away than another number's."""
    bases = [exponent << _MANTISSA | mantissa for exponent in range(1, 255) for mantissa in (0, 0x2AAAAA, 0x7FFFFF)]
    steps = [count << shift for shift in range(_MANTISSA) for count in (-3, -2, -1, 0, 1, 2, 3)]
    bits = np.clip(np.add.outer(bases, steps).ravel(), 0, (255 << _MANTISSA) - 1).astype(np.uint32)
    given = np.unique(np.concatenate([bits, bits | 1 << 31]).view(np.float32))
    got = row.from_bits(np, np.asarray(row.to_bits(np, given))).astype(np.float64)
    exact, reached = given.astype(np.float64), np.unique(got[np.isfinite(got)])
    above = np.clip(np.searchsorted(reached, exact), 1, len(reached) - 1)
    low, high = reached[above - 1], reached[above]
    nearest = np.where(exact - low < high - exact, low, high)
    is_tie = np.abs(got - exact) == np.abs(nearest - exact)
    keeps = np.abs(exact) <= reached[-1]
    _judge(row, exact, got, np.where(is_tie | ~keeps, got, nearest), keeps)


def _check(row: OperandRow, kind: Any, given: Any, wanted: Any) -> None:
    narrow = given.astype(np.float32)
    bits = np.asarray(row.to_bits(np, narrow))
    if bits.dtype != kind:
        raise WorkerError(f"dtype {row.name}: to_bits returns {bits.dtype}, but elements of {row.bits} bits are {kind}")
    got = row.from_bits(np, bits).astype(np.float64)
    _judge(row, narrow.astype(np.float64), got, wanted, np.ones(got.shape, dtype=np.bool_))


def _judge(row: OperandRow, exact: Any, got: Any, wanted: Any, keeps: Any) -> None:
    """`keeps` says which values have to stay within the roundoff."""
    off = np.abs(got - exact)
    bad = keeps & ((got != wanted) | (off > row.roundoff * np.abs(exact) + row.smallest_step))
    if bad.any():
        at = int(np.argmax(bad))
        what = f"{exact[at]:g} becomes {got[at]:g}, but {wanted[at]:g} is nearest and the roundoff is {row.roundoff:g}"
        raise WorkerError(f"dtype {row.name}: {what}: fix its to_bits, from_bits or roundoff")
