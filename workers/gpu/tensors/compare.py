"""Compares outputs with their references, by kernels of tools_of_elements.cu.

CuPy would compile a kernel for each of its expressions in the measuring process. With an empty cache, that took ten
seconds in the first two trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import DtypeRow

from ...source.tools import kernel_of
from .reference import Reference

Array = Any  # a cupy.ndarray; CuPy has no type annotations

_CTAS, _THREADS = 512, 256
#: No bad element was found (its index is past the last one), and both sums of squares are 0.
_NOTHING = np.array([0, 2**64 - 1, 0, 0], dtype=np.uint64)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An output compared with its reference."""

    num_bad: int
    #: Index of the first bad element, by rows.
    first_bad: int
    #: Norm of the difference divided by that of the reference; 0 if the latter is 0.
    rel_error: float


class Comparer:
    """Compares arrays on the card."""

    def __init__(self, tools: Any) -> None:
        """`tools` is the module of `tools_source`."""
        self._tools = tools

    def difference(self, bits: Array, dtype: Dtype | DtypeRow, want: Reference) -> Difference:
        """`bits` [m, n] of a dtype compared with their reference; a NaN is bad."""
        if not isinstance(dtype, Dtype):
            return _difference(bits.view(dtype.array_name), want)
        found = cupy.asarray(_NOTHING)
        args = (bits, want.values, want.tolerance, cupy.uint64(bits.size), found)
        self._tools.get_function(kernel_of("tuner_compare", dtype))((_CTAS,), (_THREADS,), args)
        answer: np.ndarray[Any, np.dtype[np.uint64]] = found.get()
        off, norm = np.sqrt(answer[2:].view(np.float64)).tolist()
        return Difference(num_bad=int(answer[0]), first_bad=int(answer[1]), rel_error=off / norm if norm else 0.0)

    def are_same(self, one: Array, other: Array, dtype: Dtype | DtypeRow) -> bool:
        """Whether two arrays of a dtype have the same bits."""
        if not isinstance(dtype, Dtype):
            return bool((one == other).all())
        count = cupy.asarray(np.zeros(1, dtype=np.uint64))
        kernel = self._tools.get_function(kernel_of("tuner_count_different", dtype))
        kernel((_CTAS,), (_THREADS,), (one, other, cupy.uint64(one.size), count))
        return int(count.get()[0]) == 0


def _difference(values: Array, want: Reference) -> Difference:
    """For factors and integers, which only launch ops write: CuPy's expressions, compiled when they are needed."""
    off = cupy.abs(values.astype(cupy.float64) - want.values)
    bad = ~(off <= want.tolerance)
    norm = float(cupy.sqrt((want.values**2).sum()))
    return Difference(
        num_bad=int(bad.sum()),
        first_bad=int(bad.argmax()),
        rel_error=float(cupy.sqrt((off**2).sum())) / norm if norm else 0.0,
    )
