"""An attention's cache whose new rows are written by the op before: what a launch must change, and what it must not.

Each slot and each check has its own cache. Before a checked launch the new rows are NaN: an attention that reads them
before they are written returns NaN. All other rows must stay the same, which fingerprints verify.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.tensors.turned import Inputs, Turned

Array = Any  # a cupy.ndarray; CuPy has no type annotations


class AttendedCache(Turned):
    """The cache of an attention that reads its queries from the op that writes to the cache."""

    def __init__(self, op: TileOp, attention: AttentionOp, dtype: Dtype) -> None:
        self._keys, self._values, *_ = attention.operands
        super().__init__(op, attention.name)
        self._nan_bits = dtype.row.nan_bits

    def of(self, inputs: Inputs) -> tuple[Array, Array]:
        """The attention's caches, which are inputs."""
        return inputs[self._keys], inputs[self._values]

    def poison(self, checks: Sequence[Inputs]) -> None:
        """Sets the new rows of each check to NaN; on the current stream."""
        for inputs in checks:
            _, pages, places = self.kept(inputs)
            for cache in self.of(inputs):
                self.by_head(cache)[pages, :, places] = self._nan_bits

    def strayed(self, inputs: Inputs) -> str:
        """Empty: fingerprints detect writes to other rows."""
        return ""

    def only_read(self, inputs: Inputs) -> list[tuple[str, Array]]:
        """The rows between the new ones, in pieces, by name."""
        _, pages, places = (array.get() for array in self.kept(inputs))
        num_heads, heads = self._rotary.kv_heads, np.arange(self._rotary.kv_heads)
        tokens = self._rotary.page_tokens or self._rotary.max_length
        if self._rotary.heads_first:
            lines = (pages[:, None] * num_heads + heads) * tokens + places[:, None]
        else:
            lines = (pages[:, None] * tokens + places[:, None]) * num_heads + heads
        found = []
        for name, cache in zip((self._keys, self._values), self.of(inputs), strict=True):
            rows, begin = cache.reshape(-1, cache.shape[-1]), 0
            for line in (*sorted(lines.reshape(-1).tolist()), len(rows)):
                if line > begin:
                    found.append((f"{name}, outside its new tokens,", rows[begin:line]))
                begin = line + 1
        return found
