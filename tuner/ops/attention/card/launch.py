"""Launches compiled attention kernels."""

from __future__ import annotations

import ctypes

import cupy
import numpy as np
from cuda.bindings import driver

from tuner.core.insight.traces.tracing import Stamps
from tuner.core.trial.limits import Limits
from tuner.ops.attention.card.data import AttentionAddresses, addresses_of
from tuner.ops.attention.schedule import MOST_PORTABLE_CLUSTER
from tuner.ops.attention.source import (
    ATTENTION_KERNEL,
    STATUS_WORDS,
    TRACE_WORDS,
    AttentionBuffers,
    CacheMap,
    NextWeights,
    aborted_launch,
    cache_bytes,
    cache_map,
    next_weights_of,
    pack_attention_args,
    workspace_words,
)
from tuner.workers.gpu.launching.launch import FP32_NAN, Guarded, check, launch_config, programmatic_attribute
from tuner.workers.gpu.launching.tensor_maps import encode
from tuner.workers.gpu.tensors.op_data import RunOperands
from tuner.workers.source.launchable import LaunchRefused
from tuner.workers.source.own_launchable import OwnLaunchable
from tuner.workers.source.refused import refused_launch


class AttentionOnDevice:
    """An attention's kernel, its plan and its workspace, which one stream at a time may use."""

    def __init__(
        self,
        launchable: OwnLaunchable,
        *,
        programmatic: bool,
        spin_limit_cycles: int = Limits.spin_limit_cycles,
    ) -> None:
        """Loads the cubin, if everything is as it was tied.

        Raises:
            LaunchRefused: something has changed, or the card cannot hold a cluster of such CTAs.
        """
        launchable.check()
        self.launchable, self._programmatic = launchable, programmatic
        self.spin_limit_cycles = spin_limit_cycles
        tiling, self.plan = launchable.schedule.tiling_of(launchable.op.shape), launchable.plan
        self._tiling = tiling
        self._cubin = launchable.cubin  # the driver may read it until it is unloaded
        self._module = check(driver.cuModuleLoadData(self._cubin))
        self._function = check(driver.cuModuleGetFunction(self._module, ATTENTION_KERNEL.encode()))
        attributes = driver.CUfunction_attribute
        smem = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self._function, smem, tiling.smem_bytes))
        if tiling.cluster > MOST_PORTABLE_CLUSTER:
            leave = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(driver.cuFuncSetAttribute(self._function, leave, 1))
        config = launch_config(tiling.cluster, tiling.num_threads, tiling.smem_bytes, 0)
        if tiling.cluster > 1 and int(check(driver.cuOccupancyMaxActiveClusters(self._function, config))) < 1:
            raise LaunchRefused(f"the card cannot hold a cluster of {tiling.cluster} CTAs of {launchable.schedule}")
        self._tasks = Guarded(self.plan.tasks.reshape(-1))
        self._queues = Guarded(self.plan.queues)
        arrivals, partials = workspace_words(self.plan, launchable.schedule)
        self._arrivals = Guarded(np.zeros(arrivals, dtype=np.uint32))
        self._partials = Guarded(np.full(partials, FP32_NAN, dtype=np.uint32))
        self._refused = Guarded(np.zeros(STATUS_WORDS, dtype=np.uint32))
        rows = 1 + launchable.traced_tasks
        stamps = (self.plan.num_ctas if launchable.traced_tasks else 0, rows, TRACE_WORDS)
        self._stamps = cupy.zeros(stamps, dtype=cupy.int64)
        self._map = cache_map(launchable.op.shape, tiling, launchable.op.form.paged)

    def launch(self, ops: RunOperands, stream: int) -> None:
        """Enqueues one launch over a run's operands."""
        workload, op = self.launchable.workload, self.launchable.op
        reader = workload.reader_of(op)
        weights = ops[workload.tile_ops.index(reader)].w if reader else 0
        self.launch_over(addresses_of(op, ops.arrays), weights, stream)

    def launch_over(self, given: AttentionAddresses, next_weights: int, stream: int) -> None:
        """Enqueues one launch; `next_weights` is the address of the weights that the next launch reads, or 0."""
        launchable, tiling = self.launchable, self._tiling

        def encoded(cache: CacheMap, address: int) -> bytes:
            return encode(cache, launchable.workload.dtype, address)

        buffers = AttentionBuffers(
            k=cache_bytes(self._map, tiling.engine, given.keys, encoded),
            v=cache_bytes(self._map, tiling.engine, given.values, encoded),
            q=given.q,
            out=given.out,
            lengths=given.lengths,
            tasks=self._tasks.address,
            queues=self._queues.address,
            partials=self._partials.address,
            arrivals=self._arrivals.address,
            trace=self._stamps.data.ptr,
            refused=self._refused.address,
            pages=given.pages,
        )
        asked = next_weights_of(launchable.workload, launchable.index, launchable.schedule, next_weights)
        args = self.parameter(buffers, speculative=launchable.schedule.speculative, next_weights=asked)
        kept = ctypes.create_string_buffer(args, len(args))  # the driver copies it
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        config = launch_config(self.plan.num_ctas, tiling.num_threads, tiling.smem_bytes, stream)
        config.attrs = [programmatic_attribute()] if self._programmatic else []
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))

    def parameter(self, buffers: AttentionBuffers, *, speculative: bool, next_weights: NextWeights) -> bytes:
        """The kernel's parameter of one launch."""
        return pack_attention_args(
            self.plan,
            buffers,
            speculative=speculative,
            next_weights=next_weights,
            spin_limit_cycles=self.spin_limit_cycles,
        )

    def clear_stamps(self) -> None:
        """Clears the stamps of earlier launches; on the current stream."""
        self._stamps.fill(0)

    def stamps(self) -> Stamps:
        """The stamps of the last launch of a traced build: [CTA, itself and its tasks, words]."""
        return self._stamps.get()  # type: ignore[no-any-return]

    def poison(self) -> None:
        """Sets the partial sums of spans to NaN; on the current stream."""
        self._partials.words.fill(FP32_NAN)

    def overwritten(self) -> str:
        """What a launch overwrote although it must not, in words; empty if nothing."""
        name = self.launchable.op.name
        plan = self.plan
        for what, guarded, words in (("tasks", self._tasks, plan.tasks), ("queues", self._queues, plan.queues)):
            if not np.array_equal(guarded.words.get(), words.reshape(-1)):
                return f"the {what} of {name}"
        guards = {
            "tasks": self._tasks,
            "queues": self._queues,
            "counters": self._arrivals,
            "sums": self._partials,
            "refusals": self._refused,
        }
        changed = next((what for what, guarded in guards.items() if not guarded.is_guarded()), "")
        return f"memory around the {changed} of {name}" if changed else ""

    def refused(self) -> str | None:
        """The first invalid length or page that a launch found, in words."""
        found = refused_launch(self._refused.words.get().tolist())
        return f"{self.launchable.op.name}: {found}" if found else None

    def aborted(self) -> str | None:
        """The first wait that expired, in words."""
        found = aborted_launch(self._refused.words.get().tolist())
        return f"{self.launchable.op.name}: {found}" if found else None

    def abort_record(self) -> str | None:
        """What the launch refused, or whose wait expired."""
        return self.refused() or self.aborted()

    def unload(self) -> None:
        """Frees the module; no launch may be running."""
        check(driver.cuModuleUnload(self._module))
