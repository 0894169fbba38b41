"""Decode attention on the CPU, by its own device code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.emulated.chain import from_bits, to_bits
from tests.support.emulated.source import HERE, RULES, built, encoded
from tuner.core.plan.attention import AttentionPlan
from tuner.core.problem.attention import DecodeAttention
from tuner.core.schedule.attention import AttentionTiling
from tuner.workers.gpu.attention_reference import attention
from tuner.workers.source.attention import (
    ATTENTION_KERNEL,
    TRACE_WORDS,
    TRACED_TASKS,
    AttentionBuffers,
    NextWeights,
    cache_map,
    pack_attention_args,
    render_attention,
)

_REPLACED = {"ptx.cuh": "ptx.h", "ptx_hopper.cuh": "ptx_hopper.h", "ptx_attention.cuh": "ptx_attention.h"}

Array = np.ndarray[Any, Any]


def attention_library(
    tiling: AttentionTiling, op: DecodeAttention, changes: Sequence[tuple[str, str]] = ()
) -> ctypes.CDLL:
    """The kernel compiled by g++; `changes` are made in the generated source, each of which must be there."""
    source = render_attention(tiling, op.dtype)
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    _, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts = [(HERE / "threads.h").read_text()]
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        text = (HERE / _REPLACED[name]).read_text() if name in _REPLACED else device_text
        for pattern, said in RULES:
            text = re.sub(pattern, said, text, flags=re.DOTALL)
        parts.append(text.replace(ATTENTION_KERNEL, "tuner_chain"))
    return built("\n".join([*parts, "using KernelArgs = AttentionArgs;", (HERE / "launch.h").read_text()]))


def asked_of_l2(library: ctypes.CDLL) -> list[tuple[int, int]]:
    """What launches have prefetched since the library was loaded: addresses and sizes."""
    most = int(library.prefetched(None, 0))
    pairs = np.zeros((most, 2), np.uint64)
    library.prefetched(ctypes.c_void_p(pairs.ctypes.data), most)
    return [(int(address), int(size)) for address, size in pairs]


@dataclass
class EmulatedAttention:
    """Inputs of an op, and launches over them. What no query may see is NaN."""

    op: DecodeAttention
    lengths: Sequence[int]
    seed: int = 0

    def __post_init__(self) -> None:
        op, rng = self.op, np.random.default_rng(self.seed)
        cache = (op.sequences, op.kv_heads, op.max_length, op.head_dim)
        self.k, self.v = (to_bits(rng.standard_normal(cache), op.dtype) for _ in range(2))
        self.q = to_bits(
            rng.standard_normal((op.sequences, op.new_tokens, op.kv_heads * op.query_heads, op.head_dim)), op.dtype
        )
        for sequence, length in enumerate(self.lengths):
            self.k[sequence, :, max(length, 0) :] = self.v[sequence, :, max(length, 0) :] = 0x7FFF
        self.arrivals = np.zeros(0, np.uint32)

    def run(
        self,
        library: ctypes.CDLL,
        plan: AttentionPlan,
        tiling: AttentionTiling,
        *,
        speculative: bool,
        next_weights: NextWeights | None = None,
    ) -> Array:
        """The bits of the result of one launch. The counters of arrivals go on from launch to launch."""
        out = np.full_like(self.q, 0x7FFF)
        if self.arrivals.size == 0:
            self.arrivals = np.zeros(plan.num_counters, np.uint32)
        partials = np.full(plan.num_slots * plan.num_spans * tiling.partial_floats + 4, np.nan, np.float32)
        partials = partials[-(partials.ctypes.data // 4) % 4 :]
        lengths = np.array(self.lengths, np.int32)
        trace = np.zeros(TRACED_TASKS * TRACE_WORDS * plan.num_ctas, np.int64)
        maps = tuple(encoded(cache_map(self.op, tiling), cache.ctypes.data) for cache in (self.k, self.v))
        buffers = AttentionBuffers(
            k_map=maps[0],
            v_map=maps[1],
            q=self.q.ctypes.data,
            out=out.ctypes.data,
            lengths=lengths.ctypes.data,
            tasks=plan.tasks.ctypes.data,
            queues=plan.queues.ctypes.data,
            partials=partials.ctypes.data,
            arrivals=self.arrivals.ctypes.data,
            trace=trace.ctypes.data,
        )
        args = pack_attention_args(plan, buffers, speculative=speculative, next_weights=next_weights)
        aligned = np.zeros(len(args) + 64, np.uint8)
        aligned = aligned[-aligned.ctypes.data % 64 :][: len(args)]
        aligned[:] = np.frombuffer(args, np.uint8)
        left = library.emulate(
            ctypes.c_void_p(aligned.ctypes.data), plan.num_ctas, tiling.num_threads, plan.cluster, tiling.smem_bytes
        )
        assert left == 0, f"{left} threads hang"
        return out

    def expected(self) -> Array:
        """In float64."""
        q, k, v = (from_bits(bits, self.op.dtype) for bits in (self.q, self.k, self.v))
        expected: Array = attention(self.op, q, k, v, self.lengths, np)
        return expected
