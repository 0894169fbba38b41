"""Whether an element type's row converts as it says: a kernel and its check that share a fault would agree."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tuner.core.problem.rows.dtype import OperandRow
from tuner.errors import WorkerError

#: Of a type of more bits than 16 so many codes are drawn.
_NUM_DRAWN = 1 << 16


@lru_cache(maxsize=16)
def check_row(row: OperandRow) -> None:
    """Every value stays as it is, what lies between two goes to the nearer one within the row's roundoff, a NaN stays
    one, and codes have the row's size.

    Raises:
        WorkerError: names the row, the value, and what became of it.
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
        nan = row.from_bits(np, np.asarray(row.to_bits(np, np.full(1, np.nan, np.float32)))).astype(np.float64)
    if not np.isnan(nan).all():
        raise WorkerError(f"dtype {row.name}: to_bits turns a NaN into {nan[0]}")


def _check(row: OperandRow, kind: Any, given: Any, wanted: Any) -> None:
    narrow = given.astype(np.float32)
    bits = np.asarray(row.to_bits(np, narrow))
    if bits.dtype != kind:
        raise WorkerError(f"dtype {row.name}: to_bits returns {bits.dtype}, but elements of {row.bits} bits are {kind}")
    got = row.from_bits(np, bits).astype(np.float64)
    exact = narrow.astype(np.float64)
    off = np.abs(got - exact)
    bad = (got != wanted) | (off > row.roundoff * np.abs(exact) + row.smallest_step)
    if bad.any():
        at = int(np.argmax(bad))
        what = f"{exact[at]:g} becomes {got[at]:g}, but {wanted[at]:g} is nearest and the roundoff is {row.roundoff:g}"
        raise WorkerError(f"dtype {row.name}: {what}: fix its to_bits, from_bits or roundoff")
