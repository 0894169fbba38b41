"""An attention kernel on a card: built, loaded, launched over tensors of PyTorch, its stamps read."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from cuda.bindings import driver

from tuner.core.problem.workload import Dtype
from tuner.ops.attention.plans import check_attention
from tuner.ops.attention.plans.tasks import AttentionPlan, assign
from tuner.ops.attention.schedule import MOST_PORTABLE_CLUSTER, AttentionTiling
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import (
    ATTENTION_KERNEL,
    STATUS_WORDS,
    TRACE_WORDS,
    AttentionBuffers,
    CacheMap,
    NextWeights,
    cache_bytes,
    cache_map,
    pack_attention_args,
    render_attention,
)
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.gpu.launching.launch import check, launch_config, prefer_shared_memory, programmatic_attribute
from tuner.workers.gpu.launching.tensor_maps import encode
from tuner.workers.source.refused import RefusedLaunch, refused_launch

from .rows import Row, Variant

#: Of each CTA's tasks those that a traced build stamps.
_TRACED_TASKS = 4


class Waits(NamedTuple):
    """How a build waits, and who reads lengths: as `render_attention` has it."""

    bounded: bool = True
    lengths_once: bool = False


WAITS = Waits()


def make_current() -> None:
    """PyTorch's context, which is the device's primary one, for this thread's calls of the driver."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    device = check(driver.cuDeviceGet(torch.cuda.current_device()))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))


@functools.cache
def cubin_of(
    tiling: AttentionTiling, dtype: Dtype, form: AttentionForm = PLAIN, *, traced: bool = False, waits: Waits = WAITS
) -> bytes:
    """The compiled kernel; may be called by several threads for different kernels.

    Raises:
        RuntimeError: it spills registers.
    """
    source = render_attention(tiling, dtype, form=form, traced_tasks=_TRACED_TASKS * traced, **waits._asdict())
    cubin, log = compile_source(source, "sm_90a")
    if spilled := parse_log(log).spill_bytes:
        raise RuntimeError(f"{tiling} spills {spilled} bytes")
    return cubin


@functools.cache
def kernel_of(
    tiling: AttentionTiling, dtype: Dtype, form: AttentionForm, traced: bool, shares_sms: bool, waits: Waits = WAITS
) -> Any:
    """The loaded kernel; `shares_sms`: SMs that it runs on have room for other launches' CTAs beside it."""
    module = check(driver.cuModuleLoadData(cubin_of(tiling, dtype, form, traced=traced, waits=waits)))
    function = check(driver.cuModuleGetFunction(module, ATTENTION_KERNEL.encode()))
    attributes = driver.CUfunction_attribute
    smem = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(function, smem, tiling.smem_bytes))
    if tiling.cluster > MOST_PORTABLE_CLUSTER:
        check(driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
    if shares_sms:
        prefer_shared_memory(function)
    return function


def random_pages(row: Row) -> torch.Tensor | None:
    """Of each sequence its page numbers, in random order, int32 [sequences, pages of the longest context]; None where
    the cache is contiguous."""
    if (paged := row.form.paged) is None:
        return None
    table = torch.full((row.op.sequences, paged.pages_of(row.op)), -1, dtype=torch.int32)
    free = torch.randperm(paged.num_pages, dtype=torch.int32)
    for sequence, length in enumerate(row.lengths):
        needed = -(-length // paged.page_tokens)
        table[sequence, :needed], free = free[:needed], free[needed:]
    return table.cuda()


def in_pages(row: Row, cache: torch.Tensor, pages: torch.Tensor | None) -> torch.Tensor:
    """Keys or values [sequences, KV heads, max_length, head_dim] as our kernel reads them."""
    if pages is None or row.form.paged is None:
        return cache
    paged, op = row.form.paged, row.op
    found = torch.empty(paged.shape(op), dtype=cache.dtype, device=cache.device)
    whole = cache.view(op.sequences, op.kv_heads, -1, paged.page_tokens, op.head_dim).transpose(1, 2)
    for sequence, length in enumerate(row.lengths):
        needed = -(-length // paged.page_tokens)
        found[pages[sequence, :needed].long()] = whole[sequence, :needed]
    return found


class Attention:
    """One variant over caches that are given at each launch."""

    def __init__(
        self,
        op: DecodeAttention,
        variant: Variant,
        num_sms: int,
        *,
        form: AttentionForm = PLAIN,
        traced: bool = False,
        shares_sms: bool = False,
        asks_early: bool = False,
        waits: Waits = WAITS,
    ) -> None:
        """`asks_early`: clusters without tasks are there to ask for the next launch's weights."""
        self.op, self.variant = op, variant
        tiling = variant.tiling
        self.function = kernel_of(tiling, op.dtype, form, traced, shares_sms, waits)
        clusters = num_sms if tiling.cluster == 1 else self._resident()
        self.plan: AttentionPlan = assign(
            op,
            span_tokens=variant.span_tokens,
            columns=tiling.columns,
            num_queues=clusters,
            contiguous=variant.contiguous,
            cluster=tiling.cluster,
            form=form,
            by_length=variant.by_length,
        )
        if asks_early:
            self.plan = replace(self.plan, num_asking=max(0, clusters - self.plan.num_queues))
        check_attention(self.plan, tile_tokens=tiling.tile_tokens)
        self._tasks = torch.from_numpy(self.plan.tasks.copy()).cuda()
        self._queues = torch.from_numpy(self.plan.queues.copy()).cuda()
        floats = self.plan.num_slots * self.plan.num_spans * tiling.partial_floats if self.plan.num_spans > 1 else 4
        self._partials = torch.full((floats,), float("nan"), device="cuda")
        self._arrivals = torch.zeros(self.plan.num_counters, dtype=torch.int32, device="cuda")
        rows = 1 + _TRACED_TASKS
        self._trace = torch.zeros(self.plan.num_ctas, rows, TRACE_WORDS, dtype=torch.int64, device="cuda")
        self._refused = torch.zeros(STATUS_WORDS, dtype=torch.int32, device="cuda")
        self._map = cache_map(op, tiling, form.paged)

    def _resident(self) -> int:
        """Clusters that the driver says are resident at once."""
        tiling = self.variant.tiling
        config = launch_config(tiling.cluster, tiling.num_threads, tiling.smem_bytes, 0)
        clusters = int(check(driver.cuOccupancyMaxActiveClusters(self.function, config)))
        if clusters < 1:
            raise RuntimeError(f"no cluster of {tiling.cluster} CTAs is resident")
        return clusters

    def launch(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lengths: torch.Tensor,
        out: torch.Tensor,
        pages: torch.Tensor | None = None,
        next_weights: NextWeights | None = None,
    ) -> None:
        """On PyTorch's current stream. `next_weights` are those of the launch behind."""
        buffers = AttentionBuffers(
            k=cache_bytes(self._map, self.variant.tiling.engine, k.data_ptr(), self._encoded),
            v=cache_bytes(self._map, self.variant.tiling.engine, v.data_ptr(), self._encoded),
            q=q.data_ptr(),
            out=out.data_ptr(),
            lengths=lengths.data_ptr(),
            tasks=self._tasks.data_ptr(),
            queues=self._queues.data_ptr(),
            partials=self._partials.data_ptr(),
            arrivals=self._arrivals.data_ptr(),
            trace=self._trace.data_ptr(),
            refused=self._refused.data_ptr(),
            pages=0 if pages is None else pages.data_ptr(),
        )
        args = pack_attention_args(self.plan, buffers, speculative=self.variant.speculative, next_weights=next_weights)
        kept = ctypes.create_string_buffer(args, len(args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        tiling = self.variant.tiling
        stream = torch.cuda.current_stream().cuda_stream
        config = launch_config(self.plan.num_ctas, tiling.num_threads, tiling.smem_bytes, stream)
        config.attrs = [programmatic_attribute()] if self.variant.programmatic else []
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

    def _encoded(self, cache: CacheMap, address: int) -> bytes:
        return encode(cache, self.op.dtype, address, self.variant.promotion_bytes)

    def refused(self) -> RefusedLaunch | None:
        """What a launch found wrong first."""
        return refused_launch(self._refused.tolist())

    def phases(self) -> list[dict[str, Any]]:
        """Of a traced build's last launch, of each of a CTA's first tasks: when phases ended, in cycles after the CTA
        began, median and most."""
        words = self._trace.cpu().numpy()
        began = words[:, 0, 0]
        found = []
        for task in range(1, 1 + min(_TRACED_TASKS, self.plan.most_tasks)):
            of_task: dict[str, Any] = {}
            for place, name in enumerate(("taken", "first_k", "last_tile", "merged", "arrived", "combined")):
                cycles = (words[:, task, place] - began)[words[:, task, place] > began]
                if cycles.size:
                    of_task[name] = [int(np.median(cycles)), int(cycles.max())]
            found.append(of_task)
        return found
