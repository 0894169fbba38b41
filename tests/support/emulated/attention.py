"""Decode attention, run on the CPU from its device code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.attention_parameter import AttentionBuffers, WeightsAt, cache_bytes, pack_attention_args
from tests.support.emulated.chain import from_bits, to_bits
from tests.support.emulated.source import HERE, RULES, built, encoded
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.trial.limits import Limits
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.reference import attention, gathered
from tuner.ops.attention.schedule import AttentionTiling
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import ATTENTION_KERNEL, STATUS_WORDS, cache_map, render_attention
from tuner.ops.attention.stamps import TRACE_WORDS

_REPLACED = {"ptx.cuh": "ptx.h", "ptx_hopper.cuh": "ptx_hopper.h", "ptx_attention.cuh": "ptx_attention.h"}

#: Moves the wait for the previous launches after everything that they may write.
WAITS_LAST = (
    ("  wait_for_prerequisites();\n  forget", "  forget"),
    ("    request_all(args, ring, own, asked);", "    request_all(args, ring, own, asked), wait_for_prerequisites();"),
)

Array = np.ndarray[Any, Any]


def attention_library(
    tiling: AttentionTiling,
    op: DecodeAttention,
    changes: Sequence[tuple[str, str]] = (),
    form: AttentionForm = PLAIN,
    *,
    traced_tasks: int = 0,
    lengths_once: bool = False,
) -> ctypes.CDLL:
    """The kernel compiled by g++; `changes` are applied to the generated source, which must contain each original
    text."""
    source = render_attention(tiling, op.dtype, form=form, traced_tasks=traced_tasks, lengths_once=lengths_once)
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    _, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts: list[str] = []
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        text = (HERE / _REPLACED[name]).read_text() if name in _REPLACED else device_text
        for pattern, said in RULES:
            text = re.sub(pattern, said, text, flags=re.DOTALL)
        parts.append(text.replace(ATTENTION_KERNEL, "tuner_chain"))
    return built("\n".join([*parts, "using KernelArgs = AttentionArgs;", (HERE / "launch.h").read_text()]))


def asked_of_l2(library: ctypes.CDLL) -> list[tuple[int, int, bool, int]]:
    """The prefetches of all launches since the library was loaded: addresses, sizes, whether the requesting thread had
    waited for the previous launches, and the copy engine's outstanding copies."""
    most = int(library.prefetched(None, 0))
    words = np.zeros((most, 4), np.uint64)
    library.prefetched(ctypes.c_void_p(words.ctypes.data), most)
    return [(int(address), int(size), bool(waited), int(copies)) for address, size, waited, copies in words]


@dataclass
class EmulatedAttention:
    """Inputs of an op, and launches over them. Tokens that no query may see are NaN."""

    op: DecodeAttention
    lengths: Sequence[int]
    seed: int = 0
    #: Maximum number of scheduling rounds until a TMA copy completes; 0 if it completes immediately.
    copy_rounds: int = 40
    form: AttentionForm = PLAIN
    #: The parameter as it is passed to a launch.
    changed: Callable[[bytes], bytes] = bytes

    def __post_init__(self) -> None:
        op, rng = self.op, np.random.default_rng(self.seed)
        paged = self.form.paged
        cache = paged.shape(op) if paged else (op.sequences, op.kv_heads, op.max_length, op.head_dim)
        self.k, self.v = (to_bits(rng.standard_normal(cache), op.dtype) for _ in range(2))
        self.q = to_bits(
            rng.standard_normal((op.sequences, op.new_tokens, op.kv_heads * op.query_heads, op.head_dim)), op.dtype
        )
        self.pages = np.full((op.sequences, paged.pages_of(op) if paged else 0), -7, np.int32)
        if paged:
            self._fill_pages(paged, rng)
        else:
            for sequence, length in enumerate(self.lengths):
                begin, end = self._seen(length)
                for cache_bits in (self.k, self.v):
                    cache_bits[sequence, :, :begin] = cache_bits[sequence, :, end:] = 0x7FFF
        self.arrivals = np.zeros(0, np.uint32)
        self.trace = np.zeros(0, np.int64)
        self.refused = np.zeros(STATUS_WORDS, np.uint32)

    def _seen(self, length: int) -> tuple[int, int]:
        """The part of a context that a query sees."""
        return self.form.first_seen(self.op, length), max(length, 0)

    def _fill_pages(self, paged: PagedCache, rng: np.random.Generator) -> None:
        """Pages in random order; tokens that no query sees are NaN, and pages that lie entirely among them are
        missing."""
        free = [int(page) for page in rng.permutation(paged.num_pages)]
        seen = np.zeros((paged.num_pages, paged.page_tokens), bool)
        for sequence, length in enumerate(self.lengths):
            begin, end = self._seen(length)
            for token in range(begin // paged.page_tokens * paged.page_tokens, end, paged.page_tokens):
                page = self.pages[sequence, token // paged.page_tokens] = free.pop()
                places = np.arange(token, token + paged.page_tokens)
                seen[page] = (begin <= places) & (places < end)
        for cache_bits in (self.k, self.v):
            (cache_bits.swapaxes(1, 2) if paged.heads_first else cache_bits)[~seen] = 0x7FFF

    def run(
        self,
        library: ctypes.CDLL,
        plan: AttentionPlan,
        tiling: AttentionTiling,
        *,
        speculative: bool,
        next_weights: WeightsAt | None = None,
        spin_limit_cycles: int = Limits.spin_limit_cycles,
    ) -> Array:
        """The bits of the result of one launch. Arrival counters and a trace continue from launch to launch. A cycle is
        one round over all threads."""
        out = np.full_like(self.q, 0x7FFF)
        if self.arrivals.size == 0:
            self.arrivals = np.zeros(plan.num_counters, np.uint32)
            self.trace = np.zeros((plan.num_ctas, 1 + plan.most_tasks, TRACE_WORDS), np.int64)
        partials = np.full(plan.num_slots * plan.num_spans * tiling.partial_floats + 4, np.nan, np.float32)
        partials = partials[-(partials.ctypes.data // 4) % 4 :]
        lengths = np.array(self.lengths, np.int32)
        a_map = cache_map(self.op, tiling, self.form.paged)
        k, v = (cache_bytes(a_map, tiling.engine, cache.ctypes.data, encoded) for cache in (self.k, self.v))
        buffers = AttentionBuffers(
            k=k,
            v=v,
            q=self.q.ctypes.data,
            out=out.ctypes.data,
            lengths=lengths.ctypes.data,
            tasks=plan.tasks.ctypes.data,
            queues=plan.queues.ctypes.data,
            partials=partials.ctypes.data,
            arrivals=self.arrivals.ctypes.data,
            trace=self.trace.ctypes.data,
            refused=self.refused.ctypes.data,
            pages=self.pages.ctypes.data,
        )
        args = pack_attention_args(
            plan,
            buffers,
            speculative=speculative,
            next_weights=next_weights,
            spin_limit_cycles=spin_limit_cycles,
        )
        args = self.changed(args)
        aligned = np.zeros(len(args) + 64, np.uint8)
        aligned = aligned[-aligned.ctypes.data % 64 :][: len(args)]
        aligned[:] = np.frombuffer(args, np.uint8)
        library.delay_copies(self.copy_rounds, self.seed)
        readable = np.array([(array.ctypes.data, array.nbytes) for array in (self.q, self.k, self.v)], np.uint64)
        library.only_read(ctypes.c_void_p(readable.ctypes.data), len(readable))
        left = library.emulate(
            ctypes.c_void_p(aligned.ctypes.data), plan.num_ctas, tiling.num_threads, plan.cluster, tiling.smem_bytes
        )
        assert left == 0, f"{left} threads hang"
        assert library.reads_outside() == 0, "something was copied from outside of queries and cache"
        early = library.early_reads()
        assert early == 0, f"{early} times something was read that previous launches may still write"
        return out

    def expected(self) -> Array:
        """The float64 reference."""
        q, k, v = (from_bits(bits, self.op.dtype) for bits in (self.q, self.k, self.v))
        if self.form.paged:
            k, v = (gathered(self.op, self.form.paged, cache, self.pages, self.lengths, np) for cache in (k, v))
        expected: Array = attention(self.op, q, k, v, self.lengths, np, self.form)
        return expected
