"""A cache in the memory of this process that the epilogue of queries, keys and values writes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.core.problem.rotary import Rotary
from tuner.workers.source.launch_args import RotaryBuffers

Array = np.ndarray[Any, Any]

#: What is in the cache where nobody has written: no epilogue makes it.
UNTOUCHED = 0x5A5A


class EmulatedCache:
    """Keys and values of some sequences, their lengths and the frequencies."""

    def __init__(self, rotary: Rotary, rows: int) -> None:
        """Lengths from none to one more than there is room for."""
        self.rotary, self._rows = rotary, rows
        shape = rotary.cache_shape(rows)
        spread = np.linspace(0, rotary.max_length + 1, max(2, shape[0])).round().astype(np.int32)
        #: Of each sequence, new tokens included; the longest first.
        self.lengths = spread[::-1][: shape[0]].copy()
        if shape[0] == 1:
            self.lengths[0] = rotary.max_length
        self.frequencies = (10_000.0 ** (-np.arange(rotary.head_dim // 2) / (rotary.head_dim // 2))).astype(np.float32)
        bits = 2 * int(np.prod(shape))
        self._held = [np.empty(bits + 256, np.uint8) for _ in range(2)]
        self._caches = [
            held[-held.ctypes.data % 256 :][:bits].view(np.uint16).reshape(shape) for held in self._held
        ]  # of keys, and of values

    @property
    def buffers(self) -> RotaryBuffers:
        """Their addresses."""
        keys, values = (cache.ctypes.data for cache in self._caches)
        return RotaryBuffers(
            keys=keys, values=values, lengths=self.lengths.ctypes.data, frequencies=self.frequencies.ctypes.data
        )

    def poison(self) -> None:
        """Nothing is written."""
        for cache in self._caches:
            cache[...] = UNTOUCHED

    def positions(self) -> Array:
        """Of each row's token, in its sequence."""
        tokens = np.arange(self._rows)
        new = self.rotary.new_tokens
        return self.lengths[tokens // new] - new + tokens % new

    def _is_kept(self) -> Array:
        at = self.positions()
        return (at >= 0) & (at < self.rotary.max_length)

    def beside(self, queries: Array) -> Array:
        """Queries, keys and values of each row, as bits; zeros for what has no place. Nothing else was written."""
        at, kept, sequences = self.positions(), self._is_kept(), np.arange(self._rows) // self.rotary.new_tokens
        found = [queries]
        for cache in self._caches:
            rows = np.zeros((self._rows, self.rotary.kv_heads, self.rotary.head_dim), np.uint16)
            rows[kept] = cache[sequences[kept], :, at[kept]]
            others = cache.copy()
            others[sequences[kept], :, at[kept]] = UNTOUCHED
            assert (others == UNTOUCHED).all(), "written where no new token is"
            found.append(rows.reshape(self._rows, -1))
        return np.concatenate(found, axis=1)

    def expected(self, sums: Array) -> Array:
        """The same from the product's sums, first halves of all heads and then second halves, in float64."""
        rotary = self.rotary
        x, y = (half.reshape(self._rows, -1, rotary.head_dim // 2) for half in np.hsplit(sums, 2))
        angles = (self.positions().astype(np.float32)[:, None] * self.frequencies).astype(np.float64)[:, None]
        heads = np.concatenate(
            [x * np.cos(angles) - y * np.sin(angles), y * np.cos(angles) + x * np.sin(angles)], axis=-1
        )
        values = np.concatenate([x, y], axis=-1)[:, -rotary.kv_heads :]
        heads[:, -rotary.kv_heads :] = values
        heads[~self._is_kept(), rotary.heads :] = 0
        return heads.reshape(self._rows, -1)
