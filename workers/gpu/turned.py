"""The cache that an op writes new keys and values to, and what a checked launch left there."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from tuner.core.problem.rotary import Rotary
from tuner.core.problem.workload import Dtype, GemmOp

from ..source.launch_args import RotaryBuffers
from .integrity import Region, region
from .launch import fill
from .outputs import GuardedOutput
from .reference import Turn

Array = Any  # a cupy.ndarray; CuPy has no type annotations

#: Of Llama 3: a pair's radians a token are this to the power of -2 pair / head_dim.
ROPE_THETA = 500_000.0
#: The bits in a cache where nobody has written: large in either element type, and no launch makes them.
UNTOUCHED = 0x5A5A


def draw_lengths(rotary: Rotary, rows: int, turn: int) -> Array:
    """int32 of each sequence, new tokens included: the longest, none, one more than there is room for, others drawn."""
    count, longest = rotary.num_sequences(rows), rotary.max_length
    lengths = np.random.default_rng(turn).integers(rotary.new_tokens, longest, count, endpoint=True).astype(np.int32)
    edges = (longest, 0, longest + 1) if count > 2 else (longest,)
    for place, length in enumerate(edges if count > 2 or turn % 2 == 0 else ()):
        lengths[(turn + place) % count] = length
    return cupy.asarray(lengths)


class TurnedCache:
    """Keys and values [sequences, KV heads, max_length, head_dim] between canaries, and the frequencies."""

    def __init__(self, op: GemmOp, dtype: Dtype) -> None:
        assert op.rotary is not None
        self._rotary, self._m = op.rotary, op.m
        shape = op.rotary.cache_shape(op.m)
        self._guarded = [GuardedOutput(shape[0] * shape[1] * shape[2], shape[3], dtype) for _ in range(2)]
        self._caches = [one.bits.reshape(shape) for one in self._guarded]
        pairs = np.arange(op.rotary.head_dim // 2)
        self.frequencies = cupy.asarray((ROPE_THETA ** (-pairs / pairs.size)).astype(np.float32))

    def buffers(self, lengths: Array) -> RotaryBuffers:
        """What a launch is given."""
        keys, values = (int(one.address) for one in self._guarded)
        return RotaryBuffers(
            keys=keys, values=values, lengths=int(lengths.data.ptr), frequencies=int(self.frequencies.data.ptr)
        )

    def poison(self) -> None:
        """The mark that nobody has written, everywhere."""
        for cache in self._caches:
            fill(cache, UNTOUCHED)

    def turn(self, lengths: Array) -> Turn:
        """By what the rows of a launch over such sequences are turned."""
        at, is_kept = self._positions(lengths)
        angles = at.astype(cupy.float32)[:, None] * self.frequencies
        return Turn(angles=angles.astype(cupy.float64), is_kept=is_kept)

    def beside(self, queries: Array, lengths: Array) -> Array:
        """Queries, keys and values of each row, as bits; zeros for what has no place."""
        kept, sequences, places = self._kept(lengths)
        found = [queries]
        for cache in self._caches:
            rows = cupy.zeros((self._m, self._rotary.kv_heads, self._rotary.head_dim), dtype=cache.dtype)
            rows[kept] = cache[sequences, :, places]
            found.append(rows.reshape(self._m, -1))
        return cupy.ascontiguousarray(cupy.concatenate(found, axis=1))

    def strayed(self, lengths: Array) -> str:
        """Which cache was written where no new token is, in words; empty where none was."""
        _, sequences, places = self._kept(lengths)
        for what, cache in zip(("keys", "values"), self._caches, strict=True):
            others = cache != UNTOUCHED
            others[sequences, :, places] = False
            if bool(others.any()):
                return f"the cache of {what} was written where no new token is"
        return ""

    def regions(self, name: str) -> list[Region]:
        """What no launch may write."""
        found = [region(f"the frequencies of {name}", self.frequencies)]
        for what, one in zip(("keys", "values"), self._guarded, strict=True):
            found += one.surroundings(f"the cache of {what} of {name}")
        return found

    def _positions(self, lengths: Array) -> tuple[Array, Array]:
        """Of each row's token in its sequence, and whether that has a place."""
        rows, new = cupy.arange(self._m), self._rotary.new_tokens
        at = lengths[rows // new] - new + rows % new
        return at, (at >= 0) & (at < self._rotary.max_length)

    def _kept(self, lengths: Array) -> tuple[Array, Array, Array]:
        """The rows that have a place, their sequences and positions."""
        at, is_kept = self._positions(lengths)
        rows = cupy.flatnonzero(is_kept)
        return rows, rows // self._rotary.new_tokens, at[rows]
