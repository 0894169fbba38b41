"""Outputs against what they must be, by kernels of tools.cu.

CuPy would compile a kernel for each of its expressions, in the process that measures. On a machine with an empty cache
that took ten seconds of the first two trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from tuner.core.problem.workload import Dtype

from .launch import IS_BF16
from .reference import Reference

Array = Any  # a cupy.ndarray; CuPy has no type annotations

_CTAS, _THREADS = 512, 256
#: Nothing bad is found, the first bad element is behind the last one, and both sums of squares are 0.
_NOTHING = np.array([0, 2**64 - 1, 0, 0], dtype=np.uint64)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An output against its reference."""

    num_bad: int
    #: Index of the first bad element, by rows.
    first_bad: int
    #: Norm of the difference over that of the reference; 0 where the latter is 0.
    rel_error: float


class Comparer:
    """Compares arrays on the card."""

    def __init__(self, tools: Any) -> None:
        """`tools` is the module of tools.cu."""
        self._compare = tools.get_function("tuner_compare")
        self._count_different = tools.get_function("tuner_count_different")

    def difference(self, bits: Array, dtype: Dtype, want: Reference) -> Difference:
        """`bits` [m, n] of a dtype against what they must be; a NaN is bad."""
        found = cupy.asarray(_NOTHING)
        args = (bits, want.values, want.tolerance, cupy.uint64(bits.size), cupy.int32(IS_BF16[dtype]), found)
        self._compare((_CTAS,), (_THREADS,), args)
        answer: np.ndarray[Any, np.dtype[np.uint64]] = found.get()
        off, norm = np.sqrt(answer[2:].view(np.float64)).tolist()
        return Difference(num_bad=int(answer[0]), first_bad=int(answer[1]), rel_error=off / norm if norm else 0.0)

    def are_same(self, one: Array, other: Array) -> bool:
        """Whether two arrays of 2-byte elements have the same bits."""
        count = cupy.asarray(np.zeros(1, dtype=np.uint64))
        self._count_different((_CTAS,), (_THREADS,), (one, other, cupy.uint64(one.size), count))
        return int(count.get()[0]) == 0
