"""Whether memory that a candidate must not write is unchanged: fingerprints of inputs, weights, references, canaries.

A kernel that writes to the wrong memory can be correct and fast, and break the next one. So everything that a launch
may only read, and the surroundings of everything that it may write, is fingerprinted once and compared after every
candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

_CTAS_PER_REGION = 64
_THREADS = 256
#: Maximum per launch: the second dimension of a grid. In a cache, there is a region between any two newly written rows.
_MOST_REGIONS = 65535


class Overwritten(Exception):
    """Memory was overwritten that must not be; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """Device memory that must not change."""

    #: In words, e.g. ``the weights of up in slot 3``.
    name: str
    address: int
    num_bytes: int


def region(name: str, array: Any) -> Region:
    """The memory of a contiguous array."""
    assert array.flags.c_contiguous or array.flags.f_contiguous, name
    return Region(name=name, address=int(array.data.ptr), num_bytes=int(array.nbytes))


class Integrity:
    """The fingerprints of some regions, at the time when it is made."""

    def __init__(self, tools: Any, regions: Sequence[Region]) -> None:
        """`tools` is the module of tools.cu."""
        self._kernel = tools.get_function("tuner_fingerprint")
        self._names = [region.name for region in regions]
        self._table = cupy.asarray(np.array([(r.address, r.num_bytes) for r in regions], dtype=np.uint64))
        self._expected = self._fingerprints()

    def overwritten(self) -> str:
        """The regions that have changed, as text; empty if none has."""
        changed = np.flatnonzero(self._fingerprints() != self._expected)
        if not changed.size:
            return ""
        others = f" and {changed.size - 1} other buffers" if changed.size > 1 else ""
        return f"{self._names[changed[0]]}{others}"

    def _fingerprints(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        cupy.cuda.Device().synchronize()  # the launches being checked ran on other streams
        sums = cupy.zeros(len(self._names), dtype=cupy.uint64)
        for begin in range(0, len(self._names), _MOST_REGIONS):
            some = slice(begin, begin + _MOST_REGIONS)
            grid = (_CTAS_PER_REGION, len(self._names[some]))
            self._kernel(grid, (_THREADS,), (self._table[some], sums[some]))
        return sums.get()  # type: ignore[no-any-return]
