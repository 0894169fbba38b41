"""The kernel in front of an attention on the CPU, by its own device code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.emulated.chain import from_bits, to_bits
from tests.support.emulated.source import HERE, RULES, built
from tuner.core.problem.attention import DecodeAttention
from tuner.workers.source.append import (
    APPEND_KERNEL,
    APPEND_THREADS,
    AppendBuffers,
    append_ctas,
    pack_append_args,
    qkv_columns,
    render_append,
)

Array = np.ndarray[Any, Any]
#: What lies where nothing is written.
NAN = 0x7FFF


def append_library(op: DecodeAttention, changes: Sequence[tuple[str, str]] = ()) -> ctypes.CDLL:
    """The kernel compiled by g++; `changes` are made in the generated source, each of which must be there."""
    source = render_append(op)
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    _, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts = [(HERE / "threads.h").read_text()]
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        text = (HERE / "ptx.h").read_text() if name == "ptx.cuh" else device_text
        for pattern, said in RULES:
            text = re.sub(pattern, said, text, flags=re.DOTALL)
        parts.append(text.replace(APPEND_KERNEL, "tuner_chain"))
    return built("\n".join([*parts, "using KernelArgs = AppendArgs;", (HERE / "launch.h").read_text()]))


@dataclass
class EmulatedAppend:
    """A launch over random rows, and caches of NaN."""

    op: DecodeAttention
    lengths: Sequence[int]
    #: Radians a token of the first pair.
    base: float = 1.0

    def __post_init__(self) -> None:
        op, rng = self.op, np.random.default_rng(3)
        self.qkv = to_bits(rng.standard_normal((op.sequences * op.new_tokens, qkv_columns(op))), op.dtype)
        pairs = op.head_dim // 2
        self.frequencies = (self.base * 10000.0 ** (-np.arange(pairs) / pairs)).astype(np.float32)
        self.q = np.full((op.sequences * op.new_tokens, op.kv_heads * op.query_heads, op.head_dim), NAN, np.uint16)
        shape = (op.sequences, op.kv_heads, op.max_length, op.head_dim)
        size = int(np.prod(shape))
        self._whole = [np.full(size + 2 * op.head_dim, NAN, np.uint16) for _ in range(2)]
        self.keys, self.values = (whole[:size].reshape(shape) for whole in self._whole)

    def run(self, library: ctypes.CDLL) -> None:
        """One launch."""
        lengths = np.array(self.lengths, np.int32)
        arrays = (self.qkv, self.frequencies, self.q, self.keys, self.values, lengths)
        names = ("qkv", "frequencies", "q", "keys", "values", "lengths")
        addresses = {name: array.ctypes.data for name, array in zip(names, arrays, strict=True)}
        args = pack_append_args(self.op, AppendBuffers(**addresses))
        assert library.emulate(args, append_ctas(self.op), APPEND_THREADS, 1, 0) == 0

    def overruns(self) -> bool:
        """Whether something was written behind a cache."""
        return any(bool((whole[self.keys.size :] != NAN).any()) for whole in self._whole)

    def expected(self) -> tuple[Array, Array, Array]:
        """Queries, keys and values, in float64 and not rounded; NaN where nothing is written."""
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
            if 0 <= place < op.max_length:
                keys[sequence, :, place] = turned[sequence, token, queries : queries + op.kv_heads]
                values[sequence, :, place] = rows[sequence, token, queries + op.kv_heads :]
        return turned[:, :, :queries].reshape(self.q.shape), keys, values
