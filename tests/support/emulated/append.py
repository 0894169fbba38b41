"""The kernel that appends to the cache before an attention, run on the CPU from its device code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.emulated.chain import from_bits, to_bits
from tests.support.emulated.source import HERE, RULES, built
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.append import (
    APPEND_KERNEL,
    APPEND_THREADS,
    AppendBuffers,
    append_ctas,
    pack_append_args,
    qkv_columns,
    render_append,
)
from tuner.ops.attention.shapes.shape import DecodeAttention

Array = np.ndarray[Any, Any]
#: The content of memory that is not written.
NAN = 0x7FFF


def append_library(
    op: DecodeAttention, changes: Sequence[tuple[str, str]] = (), paged: PagedCache | None = None
) -> ctypes.CDLL:
    """The kernel compiled by g++; `changes` are applied to the generated source, which must contain each original
    text."""
    source = render_append(op, paged)
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    _, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts: list[str] = []
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        text = (HERE / "ptx.h").read_text() if name == "ptx.cuh" else device_text
        for pattern, said in RULES:
            text = re.sub(pattern, said, text, flags=re.DOTALL)
        parts.append(text.replace(APPEND_KERNEL, "tuner_chain"))
    return built("\n".join([*parts, "using KernelArgs = AppendArgs;", (HERE / "launch.h").read_text()]))


@dataclass
class EmulatedAppend:
    """A launch over random rows, and caches filled with NaN."""

    op: DecodeAttention
    lengths: Sequence[int]
    #: Rotation frequency of the first pair, radians per token.
    base: float = 1.0
    #: Size of the cache, which is followed by memory for a page.
    paged: PagedCache | None = None

    def __post_init__(self) -> None:
        op, rng = self.op, np.random.default_rng(3)
        self.qkv = to_bits(rng.standard_normal((op.sequences * op.new_tokens, qkv_columns(op))), op.dtype)
        pairs = op.head_dim // 2
        self.frequencies = (self.base * 10000.0 ** (-np.arange(pairs) / pairs)).astype(np.float32)
        self.q = np.full((op.sequences * op.new_tokens, op.kv_heads * op.query_heads, op.head_dim), NAN, np.uint16)
        shape = self.paged.shape(op) if self.paged else (op.sequences, op.kv_heads, op.max_length, op.head_dim)
        size = int(np.prod(shape))
        behind = int(np.prod(shape[1:])) if self.paged else 2 * op.head_dim
        self._whole = [np.full(size + behind, NAN, np.uint16) for _ in range(2)]
        #: Keys and values in their memory layout.
        self.held = [whole[:size].reshape(shape) for whole in self._whole]
        self.pages = np.zeros((op.sequences, 0), np.int32)
        if self.paged:
            self.pages = rng.permutation(self.paged.num_pages).astype(np.int32).reshape(op.sequences, -1)
        self._in_order_of = self.pages.copy()

    @property
    def keys(self) -> Array:
        """[sequences, KV heads, max_length, head_dim]; for a paged cache, in page order."""
        return self._in_order(self.held[0])

    @property
    def values(self) -> Array:
        """Same as for `keys`."""
        return self._in_order(self.held[1])

    def _in_order(self, cache: Array) -> Array:
        if self.paged is None:
            return cache
        pages = (cache if self.paged.heads_first else cache.swapaxes(1, 2))[self._in_order_of]
        rows = pages.swapaxes(1, 2).reshape(self.op.sequences, self.op.kv_heads, -1, self.op.head_dim)
        assert (rows[:, :, self.op.max_length :] == NAN).all(), "written after the longest context"
        return rows[:, :, : self.op.max_length]

    def run(self, library: ctypes.CDLL) -> None:
        """Runs one launch."""
        lengths = np.array(self.lengths, np.int32)
        arrays = (self.qkv, self.frequencies, self.q, *self.held, lengths, self.pages)
        names = ("qkv", "frequencies", "q", "keys", "values", "lengths", "pages")
        addresses = {name: array.ctypes.data for name, array in zip(names, arrays, strict=True)}
        buffers = AppendBuffers(**addresses, num_pages=self.paged.num_pages if self.paged else 0)
        args = pack_append_args(self.op, buffers, self.paged)
        assert library.emulate(args, append_ctas(self.op), APPEND_THREADS, 1, 0) == 0

    def overruns(self) -> bool:
        """Whether anything was written past the end of a cache."""
        return any(bool((whole[held.size :] != NAN).any()) for whole, held in zip(self._whole, self.held, strict=True))

    def _is_in_cache(self, sequence: int, place: int) -> bool:
        if self.paged is None:
            return True
        return bool(0 <= self.pages[sequence, place // self.paged.page_tokens] < self.paged.num_pages)

    def expected(self) -> tuple[Array, Array, Array]:
        """Queries, keys and values in unrounded float64; NaN where nothing is written."""
        op = self.op
        rows = from_bits(self.qkv, op.dtype).reshape(op.sequences, op.new_tokens, -1, op.head_dim)
        places = np.array(self.lengths)[:, None] - op.new_tokens + np.arange(op.new_tokens)
        angles = (places[..., None] * self.frequencies.astype(np.float64))[:, :, None]
        x, y = np.split(rows, 2, axis=-1)
        turned = np.concatenate(
            [x * np.cos(angles) - y * np.sin(angles), y * np.cos(angles) + x * np.sin(angles)], axis=-1
        )
        queries = op.kv_heads * op.query_heads
        keys, values = (np.full(self.keys.shape, np.nan) for _ in range(2))
        for (sequence, token), place in np.ndenumerate(places):
            if 0 <= place < op.max_length and self._is_in_cache(sequence, place):
                keys[sequence, :, place] = turned[sequence, token, queries : queries + op.kv_heads]
                values[sequence, :, place] = rows[sequence, token, queries + op.kv_heads :]
        return turned[:, :, :queries].reshape(self.q.shape), keys, values
