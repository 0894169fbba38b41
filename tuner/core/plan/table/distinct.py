"""The distinct rows of a table, like `numpy.unique` along the first axis, but much faster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: Numbers below this are exact in a word.
_NUM_KEYS = 2**62


@dataclass(frozen=True, kw_only=True, eq=False)
class Distinct:
    """What `distinct_rows` found."""

    #: [distinct rows, columns] in lexicographic order.
    rows: Ints
    #: [distinct rows] the first row of the table that equals it.
    first: Ints
    #: [rows of the table] the index of each row among the distinct rows.
    of: Ints


def distinct_rows(table: npt.NDArray[np.integer[Any]]) -> Distinct:
    """The distinct rows of a table [rows, columns] of integers.

    A row becomes one number, whose digits are its columns in mixed radix, so numbers are sorted instead of rows. If
    numbers could be too large for a word, NumPy sorts the rows.
    """
    words = table.astype(np.int64)
    least, most = words.min(axis=0, initial=0).tolist(), words.max(axis=0, initial=0).tolist()
    radices = [high - low + 1 for low, high in zip(least, most, strict=True)]
    if math.prod(radices) >= _NUM_KEYS:
        rows, first, of = np.unique(words, axis=0, return_index=True, return_inverse=True)
        return Distinct(rows=rows, first=first, of=of.reshape(-1))
    keys = np.zeros(len(words), dtype=np.int64)
    for column, (low, radix) in enumerate(zip(least, radices, strict=True)):
        keys = keys * radix + (words[:, column] - low)
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    return Distinct(rows=words[first], first=first, of=of.reshape(-1))
