"""The cache that an op writes new keys and values to, and what a checked launch wrote there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import cupy
import numpy as np

from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype

from ..launching.launch import fill
from .integrity import Region, region
from .kv_cache import hide_numbers
from .outputs import GuardedOutput

Array = Any  # a cupy.ndarray; CuPy has no type annotations
#: Inputs of a slot or of a check, by tensor name.
Inputs = Mapping[str, Array]

#: As in Llama 3: a pair's radians per token are this to the power of -2 pair / head_dim.
ROPE_THETA = 500_000.0
#: The bits of unwritten elements in a cache: large in either element type, and no launch produces them.
UNTOUCHED = 0x5A5A


def draw_lengths(rotary: Rotary, rows: int, turn: int) -> Array:
    """int32 for each sequence, new tokens included: the maximum, zero, only the new tokens, others random."""
    count, longest = rotary.num_sequences(rows), rotary.max_length
    lengths = np.random.default_rng(turn).integers(rotary.new_tokens, longest, count, endpoint=True).astype(np.int32)
    edges = (longest, 0, rotary.new_tokens) if count > 2 else (longest,)
    for place, length in enumerate(edges if count > 2 or turn % 2 == 0 else ()):
        lengths[(turn + place) % count] = length
    return cupy.asarray(lengths)


def draw_pages(rotary: Rotary, rows: int, turn: int, lengths: Array) -> Array:
    """int32 for each sequence and page: all pages in random order, and no page for tokens beyond these lengths."""
    paged, random = rotary.paged(rows), np.random.default_rng(turn)
    assert paged is not None
    table = random.permutation(paged.num_pages).astype(np.int32).reshape(rotary.num_sequences(rows), -1)
    hide_numbers(table, lengths.get().tolist(), paged)
    return cupy.asarray(table)


class Turned(ABC):
    """The tensors with which an op rotates its rows, and the cache that it writes to, with the shape
    `Rotary.cache_shape`.
    """

    def __init__(self, op: TileOp, cache: str) -> None:
        """`cache` is a prefix of the names of its lengths and of its table."""
        assert op.rotary is not None
        self._rotary, self._m = op.rotary, op.m
        self._lengths, self._pages = f"{cache}.lengths", f"{cache}.pages"
        pairs = np.arange(op.rotary.head_dim // 2)
        self.frequencies = cupy.asarray((ROPE_THETA ** (-pairs / pairs.size)).astype(np.float32))

    @abstractmethod
    def of(self, inputs: Inputs) -> tuple[Array, Array]:
        """Keys and values that a launch over such inputs writes to, as bits."""

    @abstractmethod
    def poison(self, checks: Sequence[Inputs]) -> None:
        """Marks the cache, so that it shows what a launch over any of these inputs writes."""

    @abstractmethod
    def strayed(self, inputs: Inputs) -> str:
        """The name of a cache that was written outside the new tokens' slots; empty if none was."""

    def draw(self, turn: int) -> dict[str, Array]:
        """The inputs of the rotation and the cache, by name."""
        return {}

    def array(self, name: str, inputs: Inputs) -> Array:
        """The array for an argument other than the caches, by the argument's name."""
        given = {"lengths": self._lengths, "pages": self._pages}
        return inputs[given[name]] if name in given else self.frequencies

    def arguments(self, inputs: Inputs) -> dict[str, int]:
        """A launch's arrays, by the arguments' names."""
        keys, values = self.of(inputs)
        pages = {} if self._rotary.page_tokens is None else {"pages": self.array("pages", inputs)}
        found = {"keys": keys, "values": values, **pages}
        found |= {name: self.array(name, inputs) for name in ("lengths", "frequencies")}
        return {name: int(array.data.ptr) for name, array in found.items()} | (
            {"num_pages": len(keys)} if pages else {}
        )

    def beside(self, queries: Array, inputs: Inputs) -> Array:
        """Queries, keys and values of each row, as bits; zeros for rows that are not stored."""
        kept, pages, places = self.kept(inputs)
        found = [queries]
        for cache in self.of(inputs):
            rows = cupy.zeros((self._m, self._rotary.kv_heads, self._rotary.head_dim), dtype=cache.dtype)
            rows[kept] = self.by_head(cache)[pages, :, places]
            found.append(rows.reshape(self._m, -1))
        return cupy.ascontiguousarray(cupy.concatenate(found, axis=1))

    def regions(self, name: str) -> list[Region]:
        """The memory that no launch may write."""
        return [region(f"the frequencies of {name}", self.frequencies)]

    def kept(self, inputs: Inputs) -> tuple[Array, Array, Array]:
        """The rows that are stored; for each, its page, which is the sequence in a contiguous cache, and its
        position in it."""
        at, is_kept = self._rotary.positions(cupy, inputs[self._lengths], self._m)
        rows = cupy.flatnonzero(is_kept)
        sequences, places = rows // self._rotary.new_tokens, at[rows]
        if (tokens := self._rotary.page_tokens) is None:
            return rows, sequences, places
        return rows, inputs[self._pages][sequences, places // tokens], places % tokens

    def by_head(self, cache: Array) -> Array:
        """A view of keys, or values, as [pages, KV heads, tokens, head_dim]."""
        return cache if self._rotary.heads_first else cache.swapaxes(1, 2)


class TurnedCache(Turned):
    """A cache that no op reads: keys and values between canaries, which all launches write to."""

    def __init__(self, op: TileOp, dtype: Dtype) -> None:
        super().__init__(op, op.name)
        shape = self._rotary.cache_shape(op.m)
        self._guarded = [GuardedOutput(shape[0] * shape[1] * shape[2], shape[3], dtype) for _ in range(2)]
        keys, values = (one.bits.reshape(shape) for one in self._guarded)
        self._caches = keys, values

    def draw(self, turn: int) -> dict[str, Array]:
        """Lengths, and for pages a table."""
        lengths = draw_lengths(self._rotary, self._m, turn)
        if self._rotary.page_tokens is None:
            return {self._lengths: lengths}
        return {self._lengths: lengths, self._pages: draw_pages(self._rotary, self._m, turn, lengths)}

    def of(self, inputs: Inputs) -> tuple[Array, Array]:
        """The keys and values, which are the same for all inputs."""
        return self._caches

    def poison(self, checks: Sequence[Inputs]) -> None:
        """Sets all elements to the mark for unwritten ones."""
        for cache in self._caches:
            fill(cache, UNTOUCHED)

    def strayed(self, inputs: Inputs) -> str:
        """The name of a cache whose marks were overwritten outside the new tokens' slots; empty if none."""
        _, pages, places = self.kept(inputs)
        for what, cache in zip(("keys", "values"), self._caches, strict=True):
            others = self.by_head(cache) != UNTOUCHED
            others[pages, :, places] = False
            if bool(others.any()):
                return f"the cache of {what} was written outside its new tokens"
        return ""

    def regions(self, name: str) -> list[Region]:
        """The memory that no launch may write, including the surroundings of the cache."""
        found = super().regions(name)
        for what, one in zip(("keys", "values"), self._guarded, strict=True):
            found += one.surroundings(f"the cache of {what} of {name}")
        return found
