"""An attention kernel on a card: built, loaded, launched over tensors of PyTorch, its stamps read."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from tuner.core.plan.attention import AttentionPlan, assign
from tuner.core.problem.attention import DecodeAttention
from tuner.core.problem.workload import Dtype
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.gpu.launch import check, launch_config, programmatic_attribute
from tuner.workers.gpu.tensor_maps import encode
from tuner.workers.source.attention import (
    ATTENTION_KERNEL,
    TRACE_WORDS,
    AttentionBuffers,
    AttentionTiling,
    cache_map,
    pack_attention_args,
    render_attention,
)

from .rows import Variant


def make_current() -> None:
    """PyTorch's context, which is the device's primary one, for this thread's calls of the driver."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    device = check(driver.cuDeviceGet(torch.cuda.current_device()))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))


@functools.cache
def kernel_of(tiling: AttentionTiling, dtype: Dtype, traced: bool) -> tuple[Any, int]:
    """The loaded kernel, and its registers."""
    cubin, log = compile_source(render_attention(tiling, dtype, traced=traced), "sm_90a")
    resources = parse_log(log)
    if resources.spill_bytes:
        raise RuntimeError(f"{tiling} spills {resources.spill_bytes} bytes")
    module = check(driver.cuModuleLoadData(cubin))
    function = check(driver.cuModuleGetFunction(module, ATTENTION_KERNEL.encode()))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(function, attribute, tiling.smem_bytes))
    return function, resources.registers_per_thread


class Attention:
    """One variant over caches that are given at each launch."""

    def __init__(self, op: DecodeAttention, variant: Variant, num_ctas: int, *, traced: bool = False) -> None:
        self.op, self.variant = op, variant
        tiling = variant.tiling
        self.plan: AttentionPlan = assign(
            op,
            chunk_tokens=variant.chunk_tokens,
            columns=tiling.columns,
            num_ctas=num_ctas,
            contiguous=variant.contiguous,
        )
        self.function, self.registers = kernel_of(tiling, op.dtype, traced)
        self._tasks = torch.from_numpy(self.plan.tasks.copy()).cuda()
        self._queues = torch.from_numpy(self.plan.queues.copy()).cuda()
        floats = self.plan.num_slots * self.plan.num_chunks * tiling.partial_floats if self.plan.num_chunks > 1 else 4
        self._partials = torch.full((floats,), float("nan"), device="cuda")
        self._arrivals = torch.zeros(self.plan.num_slots, dtype=torch.int32, device="cuda")
        self._trace = torch.zeros(self.plan.num_ctas, TRACE_WORDS, dtype=torch.int64, device="cuda")
        self._map = cache_map(op, tiling)

    def launch(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor
    ) -> None:
        """On PyTorch's current stream."""
        buffers = AttentionBuffers(
            k_map=encode(self._map, self.op.dtype, k.data_ptr()),  # type: ignore[arg-type]
            v_map=encode(self._map, self.op.dtype, v.data_ptr()),  # type: ignore[arg-type]
            q=q.data_ptr(),
            out=out.data_ptr(),
            lengths=lengths.data_ptr(),
            tasks=self._tasks.data_ptr(),
            queues=self._queues.data_ptr(),
            partials=self._partials.data_ptr(),
            arrivals=self._arrivals.data_ptr(),
            trace=self._trace.data_ptr(),
        )
        args = pack_attention_args(self.plan, buffers, speculative=self.variant.speculative)
        kept = ctypes.create_string_buffer(args, len(args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        tiling = self.variant.tiling
        stream = torch.cuda.current_stream().cuda_stream
        config = launch_config(self.plan.num_ctas, tiling.num_threads, tiling.smem_bytes, stream)
        config.attrs = [programmatic_attribute()] if self.variant.programmatic else []
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

    def phases(self) -> dict[str, Any]:
        """Of a traced build's last launch: when phases ended, in cycles after a CTA began, median and most."""
        words = self._trace.cpu().numpy()
        names = ("first_k", "last_tile", "merged", "arrived", "combined", "ended")
        found: dict[str, Any] = {"began_spread_ns": int(words[:, 0].max() - words[:, 0].min())}
        for place, name in enumerate(names, start=2):
            cycles = (words[:, place] - words[:, 1])[words[:, place] > words[:, 1]]
            if cycles.size:
                found[name] = [int(np.median(cycles)), int(cycles.max())]
        return found
