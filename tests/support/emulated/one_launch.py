"""An attention and its projection in one launch on the CPU, by their own device code."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.attention.one_launch_kernel import ALIGNMENT, KERNEL, Made, OneVariant, product_args
from benchmarks.attention.pair_rows import projection_of
from benchmarks.attention.rows import Row
from tests.support.emulated.attention import EmulatedAttention
from tests.support.emulated.chain import aligned, from_bits, to_bits
from tests.support.emulated.source import HERE, RULES, built, encoded
from tuner.ops.attention.source import NO_WEIGHTS, AttentionBuffers, cache_map, pack_attention_args
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.render import SIGNALS_OFFSET_BYTES
from tuner.workers.source.tensor_maps import tensor_maps

_REPLACED = {"ptx.cuh": "ptx.h", "ptx_hopper.cuh": "ptx_hopper.h", "ptx_attention.cuh": "ptx_attention.h"}

Array = np.ndarray[Any, Any]


def one_launch_library(made: Made, changes: Sequence[tuple[str, str]] = ()) -> ctypes.CDLL:
    """The kernel compiled by g++; `changes` are made in the generated source, each of which must be there."""
    source = made.source
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    head, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts = [(HERE / "threads.h").read_text(), head]
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        text = (HERE / _REPLACED[name]).read_text() if name in _REPLACED else device_text
        parts.append("" if name == "wgmma.cuh" else text)
    text = "\n".join(parts)
    for pattern, said in RULES:
        text = re.sub(pattern, said, text, flags=re.DOTALL)
    text = re.sub(r"__cluster_dims__\(\d+, 1, 1\)", "", text).replace(KERNEL, "tuner_chain")
    return built("\n".join([text, "using KernelArgs = OneLaunchArgs;", (HERE / "launch.h").read_text()]))


class EmulatedOneLaunch:
    """Tensors of a row, and launches over them on one workspace."""

    def __init__(self, row: Row, *, seed: int = 0) -> None:
        """Draws them."""
        self.row, self.gemm = row, projection_of(row).tile_ops[0]
        self._cache = EmulatedAttention(op=row.op, lengths=row.lengths, form=row.form, seed=seed)
        weights = np.random.default_rng(seed).standard_normal((self.gemm.n, self.gemm.k)) / self.gemm.k**0.5
        self._weights = self._held(to_bits(weights, row.op.dtype))
        self._workspace = aligned(1 << 14, 0)
        self._arrivals = np.zeros(0, np.uint32)
        self._seed = seed

    def _held(self, bits: Array) -> Array:
        held = aligned(bits.nbytes).view(np.uint16).reshape(bits.shape)
        held[...] = bits
        return held

    def run(self, library: ctypes.CDLL, made: Made, variant: OneVariant) -> Array:
        """The result of one launch, in float64, before which all that it writes was NaN. Counters go on."""
        op, gemm, cache = self.row.op, self.gemm, self._cache
        attended = self._held(np.full((gemm.m, gemm.k), 0x7FFF, np.uint16))
        result = self._held(np.full((gemm.m, gemm.n), 0x7FFF, np.uint16))
        words = aligned(made.product.words.nbytes).view(np.int32)
        words[:] = made.product.words
        given = OpBuffers(
            a=attended.ctypes.data, w=self._weights.ctypes.data, bias=0, c=result.ctypes.data,
            m=gemm.m, n=gemm.n, k=gemm.k,
        )  # fmt: skip
        graph = made.product.graph
        maps = tuple(encoded(one, getattr(given, one.operand)) for one in tensor_maps(graph.workload, graph.tiling))
        args = product_args(made.product, words.ctypes.data, self._workspace.ctypes.data, given, maps)
        args += self._attention(made, variant, attended)
        sequences = graph.tiling.cta_tiles[0].m // op.new_tokens
        args += np.array([self._workspace.ctypes.data + SIGNALS_OFFSET_BYTES], np.uint64).tobytes()
        args += np.array([sequences, 0], np.int32).tobytes()
        args += bytes(-len(args) % ALIGNMENT)
        parameter = aligned(len(args))
        parameter[:] = np.frombuffer(args, np.uint8)
        library.delay_copies(cache.copy_rounds, self._seed)
        cluster = variant.attention.tiling.cluster
        left = library.emulate(
            ctypes.c_void_p(parameter.ctypes.data), made.num_ctas, made.num_threads, cluster, made.smem_bytes
        )
        assert left == 0, f"{left} threads wait for ever"
        early = library.early_reads()
        assert early == 0, f"{early} times something was read that launches before may still write"
        return from_bits(result, op.dtype)

    def _attention(self, made: Made, variant: OneVariant, attended: Array) -> bytes:
        """The attention's part of the parameter."""
        cache, plan, tiling = self._cache, made.attention, variant.attention.tiling
        if self._arrivals.size == 0:
            self._arrivals = np.zeros(plan.num_counters, np.uint32)
        self._partials = aligned(4 * plan.num_slots * plan.num_spans * tiling.partial_floats + 64, 0xFF)
        self._kept = SimpleNamespace(
            lengths=np.array(cache.lengths, np.int32), tasks=plan.tasks.copy(), queues=plan.queues.copy()
        )
        maps = (encoded(cache_map(cache.op, tiling, cache.form.paged), one.ctypes.data) for one in (cache.k, cache.v))
        k_map, v_map = maps
        buffers = AttentionBuffers(
            k=k_map,
            v=v_map,
            q=cache.q.ctypes.data,
            out=attended.ctypes.data,
            lengths=self._kept.lengths.ctypes.data,
            tasks=self._kept.tasks.ctypes.data,
            queues=self._kept.queues.ctypes.data,
            partials=self._partials.ctypes.data,
            arrivals=self._arrivals.ctypes.data,
            trace=0,
            refused=cache.refused.ctypes.data,
        )
        speculative = variant.attention.speculative
        return pack_attention_args(plan, buffers, speculative=speculative, next_weights=NO_WEIGHTS)

    def expected(self) -> Array:
        """In float64."""
        attended = self._cache.expected().reshape(self.gemm.m, self.gemm.k)
        return attended @ from_bits(self._weights, self.row.op.dtype).T
