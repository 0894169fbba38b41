"""One launch of an attention and its projection on a card, over tensors of PyTorch."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from cuda.bindings import driver

from tuner.core.problem.gpu import SMEM_RESERVED_PER_CTA_BYTES, Gpu
from tuner.errors import TunerError
from tuner.workers.gpu.launch import check, launch_config, prefer_shared_memory, programmatic_attribute
from tuner.workers.gpu.tensor_maps import encode
from tuner.workers.source.attention import (
    REFUSED_WORDS,
    AttentionBuffers,
    NextWeights,
    cache_map,
    pack_attention_args,
    refused_launch,
)
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.render import SIGNALS_OFFSET_BYTES
from tuner.workers.source.tensor_maps import tensor_maps

from .one_launch_kernel import ALIGNMENT, KERNEL, Made, product_args
from .one_launch_variants import OneVariant
from .pair_on_card import PairTensors

#: An SM's registers, its threads, and what a warp's registers are given in. Source: CUDA C++ Programming Guide,
#: "Technical Specifications per Compute Capability".
_SM_REGISTERS, _SM_THREADS, _REGISTER_UNIT = 65_536, 2048, 256
#: Words of a workspace: an abort's record, and what lies behind the signals.
_ABORT_WORD, _SPARE_WORDS = 32, 64


class OneLaunch:
    """A loaded kernel with its plans and its workspaces."""

    def __init__(self, tensors: PairTensors, variant: OneVariant, made: Made, cubin: bytes, gpu: Gpu) -> None:
        """Loads.

        Raises:
            TunerError: the card does not hold its CTAs at once.
        """
        self.tensors, self.variant, self.made = tensors, variant, made
        self._cubin, self._gpu = cubin, gpu
        op, tiling = tensors.row.op, variant.attention.tiling
        self._module = check(driver.cuModuleLoadData(cubin))
        self.function = check(driver.cuModuleGetFunction(self._module, KERNEL.encode()))
        smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self.function, smem, made.smem_bytes))
        prefer_shared_memory(self.function)
        if made.num_ctas > (held := self._held()):
            raise TunerError(f"the grid has {made.num_ctas} CTAs, and the card holds {held}")
        plan = made.attention
        self._tasks = torch.from_numpy(plan.tasks.copy()).cuda()
        self._queues = torch.from_numpy(plan.queues.copy()).cuda()
        floats = plan.num_slots * plan.num_spans * tiling.partial_floats if plan.num_spans > 1 else 4
        self._partials = torch.full((floats,), float("nan"), device="cuda")
        self._arrivals = torch.zeros(plan.num_counters, dtype=torch.int32, device="cuda")
        self._refused = torch.zeros(REFUSED_WORDS, dtype=torch.int32, device="cuda")
        self._map = cache_map(op, tiling, tensors.row.form.paged)
        self._words = torch.from_numpy(made.product.words.copy()).cuda()
        num_words = SIGNALS_OFFSET_BYTES // 4 + made.product.plan.num_signals + _SPARE_WORDS
        self._workspace = torch.zeros(num_words, dtype=torch.int32, device="cuda")

    def without_waits(self) -> OneLaunch:
        """The same, of which the projection waits for nobody: its numbers are wrong, its time is the traffic's."""
        product = self.made.product
        free = product.plan.without_waits()
        made = replace(self.made, product=SimpleNamespace(plan=free, words=free.words, graph=product.graph))
        return OneLaunch(self.tensors, self.variant, made, self._cubin, self._gpu)

    def _held(self) -> int:
        """CTAs that the card holds at once: of clusters what the driver says."""
        made, cluster = self.made, self.variant.attention.tiling.cluster
        if cluster > 1:
            config = launch_config(cluster, made.num_threads, made.smem_bytes, 0)
            return int(check(driver.cuOccupancyMaxActiveClusters(self.function, config))) * cluster
        registers = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        of_warp = 32 * int(check(driver.cuFuncGetAttribute(registers, self.function)))
        of_cta = -(-of_warp // _REGISTER_UNIT) * _REGISTER_UNIT * made.num_threads // 32
        by_smem = self._gpu.smem_per_sm_bytes // (made.smem_bytes + SMEM_RESERVED_PER_CTA_BYTES)
        return self._gpu.num_sms * min(_SM_REGISTERS // of_cta, _SM_THREADS // made.num_threads, by_smem)

    def check(self) -> None:
        """That no launch so far was aborted, or refused what it read.

        Raises:
            TunerError: one was.
        """
        record = self._workspace[_ABORT_WORD : _ABORT_WORD + 6].tolist()
        if record[0]:
            raise TunerError(f"aborted: {record}")
        if refused := refused_launch(self._refused.tolist()):
            raise TunerError(str(refused))

    def launch(self, slot: int, lengths: torch.Tensor | None = None) -> None:
        """On PyTorch's current stream; `lengths` in the place of the row's."""
        made = self.made
        product = self._product(slot)
        assert len(product) == made.product_bytes, "the parameter is not as the source has it"
        tile_m = made.product.graph.tiling.cta_tiles[0].m
        posts = np.array([self._workspace.data_ptr() + SIGNALS_OFFSET_BYTES], dtype=np.uint64).tobytes()
        posts += np.array([tile_m // self.tensors.row.op.new_tokens, 0], dtype=np.int32).tobytes()
        args = product + self._attention(slot, lengths) + posts
        args += bytes(-len(args) % ALIGNMENT)
        kept = ctypes.create_string_buffer(args, len(args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        stream = torch.cuda.current_stream().cuda_stream
        config = launch_config(made.num_ctas, made.num_threads, made.smem_bytes, stream)
        config.attrs = [programmatic_attribute()]
        config.numAttrs = 1
        check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

    def _product(self, slot: int) -> bytes:
        """The projection's part of the parameter."""
        tensors, product = self.tensors, self.made.product
        gemm = tensors.workload.ops[0]
        given = OpBuffers(
            a=tensors.attended.data_ptr(),
            w=tensors.weights[slot].data_ptr(),
            bias=0,
            c=tensors.results[slot].data_ptr(),
            m=gemm.m,
            n=gemm.n,
            k=gemm.k,
        )
        maps = tensor_maps(product.graph.workload, product.graph.tiling)
        encoded = tuple(encode(one, tensors.row.op.dtype, getattr(given, one.operand)) for one in maps)
        return product_args(product, self._words.data_ptr(), self._workspace.data_ptr(), given, encoded)

    def _attention(self, slot: int, lengths: torch.Tensor | None) -> bytes:
        """The attention's part of the parameter."""
        tensors, variant = self.tensors, self.variant
        dtype, promotion = tensors.row.op.dtype, variant.attention.promotion_bytes
        keys, values = tensors.own_caches[slot]
        buffers = AttentionBuffers(
            k_map=encode(self._map, dtype, keys.data_ptr(), promotion),
            v_map=encode(self._map, dtype, values.data_ptr(), promotion),
            q=tensors.q.data_ptr(),
            out=tensors.attended.data_ptr(),
            lengths=(tensors.lengths if lengths is None else lengths).data_ptr(),
            tasks=self._tasks.data_ptr(),
            queues=self._queues.data_ptr(),
            partials=self._partials.data_ptr(),
            arrivals=self._arrivals.data_ptr(),
            trace=0,
            refused=self._refused.data_ptr(),
            pages=0 if tensors.pages is None else tensors.pages.data_ptr(),
        )
        weights = tensors.weights[slot]
        row_bytes = weights.shape[1] * weights.element_size()
        asked = NextWeights(
            address=weights.data_ptr(),
            num_rows=weights.shape[0],
            row_bytes=row_bytes,
            taken_bytes=int(variant.share * row_bytes) // 16 * 16,
            early=True,
        )
        return pack_attention_args(
            self.made.attention, buffers, speculative=variant.attention.speculative, next_weights=asked
        )

    def bits_one_by_one(self) -> list[torch.Tensor]:
        """Each slot's result where every launch has the card for itself."""
        for slot in range(self.tensors.num_slots):
            self.launch(slot)
            torch.cuda.synchronize()
        return [result.clone() for result in self.tensors.results]
