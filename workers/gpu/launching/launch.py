"""Launches a compiled chain kernel: parameters, workspace, and a cooperative launch if the plan needs co-residency.

A programmatic dependent launch is never cooperative: the driver does not guarantee the combination. If the plan needs
co-residency, the driver's occupancy is used instead; dependent_launch.cuh explains why that is enough.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from tuner.core.insight.traces.tracing import STAMP_WORDS, Stamps
from tuner.core.problem.gpu import ASKED_CLUSTERS
from tuner.core.schedule.tiling import Engine
from tuner.core.trial.limits import Limits
from tuner.errors import WorkerError

from ...source.launch_args import (
    REFUSED_OFFSET_BYTES,
    WORD_BYTES,
    OpBuffers,
    extend_args,
    first_tasks,
    needs_co_residency,
    pack_args,
    workspace_layout,
)
from ...source.launchable import Launchable, LaunchRefused
from ...source.refused import REFUSED_WORDS, RefusedLaunch, refused_launch
from ...source.render import KERNEL_NAME, START_GATE_NAME
from ...source.tensor_maps import tensor_maps
from .tensor_maps import encode


class CudaError(WorkerError):
    """A driver call failed; the CUDA context may be unusable afterwards."""


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; raises CudaError with the error's name if it failed."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{driver.CUresult(status).name}")
    return values[0] if len(values) == 1 else values


def fill(array: Any, bits: int) -> None:
    """Sets every element of a contiguous array of 1, 2 or 4 bytes to `bits`, by the driver, on the current stream."""
    set_bits = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[array.itemsize]
    if array.size:
        check(set_bits(int(array.data.ptr), bits, array.size, cupy.cuda.get_current_stream().ptr))


@dataclass(frozen=True, kw_only=True)
class AbortRecord:
    """The task whose wait expired, and the signal that it waited for."""

    task: int
    signal: int
    seen: int
    expected: int
    cta: int

    def __str__(self) -> str:
        if self.task < 0:
            return f"the start gate saw {self.seen} of the first launch's {self.expected} CTAs start"
        if self.signal < 0:
            return f"CTA {self.cta}, task {self.task} polled an intermediate whose elements never arrived"
        return (
            f"CTA {self.cta}, task {self.task} waited for signal {self.signal}: "
            f"{self.seen} posts seen, {self.expected} expected"
        )


class Kernel:
    """A loaded cubin, which launches the plans that are tied to it."""

    def __init__(self, launchable: Launchable) -> None:
        """Loads the cubin, if plans, source and build still match.

        Raises:
            LaunchRefused: something differs.
        """
        launchable.check()
        self._ties = launchable.ties
        self._cubin = launchable.cubin  # the driver may read it until it is unloaded
        self._module = check(driver.cuModuleLoadData(self._cubin))
        self._function = check(driver.cuModuleGetFunction(self._module, KERNEL_NAME.encode()))
        self.num_threads = launchable.num_threads
        self.smem_bytes = smem_bytes = launchable.smem_bytes
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self._function, attribute, smem_bytes))
        width = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        #: CTAs that are placed together, according to the cubin; 1 if each is placed alone.
        self.placed_ctas = max(1, int(check(driver.cuFuncGetAttribute(width, self._function))))
        #: CTAs that form one CTA of a plan.
        self.cluster_size = launchable.tiling.cluster_size

    def ctas_per_sm(self) -> int:
        """Number of CTAs that one SM holds, according to the driver."""
        return int(
            check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, self.num_threads, self.smem_bytes))
        )

    def max_clusters(self) -> int:
        """Number of clusters of CTAs placed together that the card holds, according to the driver."""
        config = launch_config(self.placed_ctas, self.num_threads, self.smem_bytes, 0)
        return int(check(driver.cuOccupancyMaxActiveClusters(self._function, config)))

    def check_fits(self, num_ctas: int) -> None:
        """Checks that the card can hold `num_ctas` CTAs, or clusters, at the same time.

        Raises:
            LaunchRefused: it cannot.
        """
        per_sm, num_sms = self.ctas_per_sm(), num_sms_of_context()
        if self.placed_ctas > 1:
            held = min(self.max_clusters(), per_sm * num_sms // self.placed_ctas)
            if (num_placed := num_ctas * self.cluster_size // self.placed_ctas) > held:
                raise LaunchRefused(
                    f"static queues need every CTA to be resident: the grid has {num_placed} clusters of "
                    f"{self.placed_ctas} CTAs, but according to the driver the card holds {held}"
                )
            return
        if num_ctas > per_sm * num_sms:
            raise LaunchRefused(
                f"queues and first waves need every CTA to be resident: the grid has {num_ctas} CTAs, but according "
                f"to the driver {num_sms} SMs hold {per_sm} each"
            )

    def launch(self, plan: PlanOnDevice, ops: tuple[OpBuffers, ...], stream: int) -> None:
        """Enqueues one launch of a plan over `ops`. A programmatic launch may begin while the previous launch ends.

        Raises:
            LaunchRefused: the plan is tied to a different build, or the buffers belong to another workload.
        """
        self._check_tied(plan)
        args = plan.parameter(ops)
        buffer = ctypes.create_string_buffer(args, len(args))  # the driver copies it
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        num_ctas = plan.plan.plan.num_ctas * self.cluster_size
        config = launch_config(num_ctas, self.num_threads, self.smem_bytes, stream)
        cooperative = needs_co_residency(plan.plan)
        config.attrs = (
            [programmatic_attribute()] if plan.programmatic else [cooperative_attribute()] if cooperative else []
        )
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))

    def launch_start_gate(self, plan: PlanOnDevice, stream: int) -> None:
        """Delays what follows on `stream` until all CTAs of the last enqueued launch of this plan have started."""
        self._check_tied(plan)
        values = (
            ctypes.c_void_p(plan.workspace_address),
            ctypes.c_int(plan.plan.plan.num_ctas * self.cluster_size),
            ctypes.c_longlong(plan.spin_limit_cycles),
        )
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        start_gate = check(driver.cuModuleGetFunction(self._module, START_GATE_NAME.encode()))
        check(driver.cuLaunchKernelEx(launch_config(1, 1, 0, stream), start_gate, ctypes.addressof(pointers), 0))

    def _check_tied(self, plan: PlanOnDevice) -> None:
        if (plan.ties.build, plan.ties.cubin) != (self._ties.build, self._ties.cubin):
            builds = f"build {plan.ties.build[:12]}, but this kernel is of build {self._ties.build[:12]}"
            raise LaunchRefused(f"the plan is tied to {builds}: launch it with the kernel of its own Launchable")

    def unload(self) -> None:
        """Frees the module; no launch may be running."""
        check(driver.cuModuleUnload(self._module))


def num_sms_of_context() -> int:
    """SMs on which launches of the current context run: fewer than the card has, for a green context."""
    on_card = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    try:
        status, resource = driver.cuCtxGetDevResource(check(driver.cuCtxGetCurrent()), kind)
    except RuntimeError:  # drivers before CUDA 12.4 do not have this call
        return on_card
    if status != driver.CUresult.CUDA_SUCCESS or not resource.sm.smCount:
        return on_card
    return min(on_card, int(resource.sm.smCount))


def launch_config(num_ctas: int, num_threads: int, smem_bytes: int, stream: int) -> Any:
    """The arguments of cuLaunchKernelEx, without attributes."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = num_ctas, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = num_threads, 1, 1
    config.sharedMemBytes = smem_bytes
    config.hStream = stream
    return config


def cooperative_attribute() -> Any:
    """The attribute that all CTAs of a launch must be resident at the same time."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    value = driver.CUlaunchAttributeValue()
    value.cooperative = 1
    attribute.value = value
    return attribute


def programmatic_attribute() -> Any:
    """The attribute that a launch may begin while the one before it ends."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    attribute.value = value
    return attribute


class Guarded:
    """32-bit words on the device between canaries."""

    def __init__(self, words: np.ndarray[Any, Any]) -> None:
        """Copies `words`."""
        whole = np.full(words.size + 2 * _GUARD_WORDS, _GUARD, dtype=np.uint32)
        whole[_GUARD_WORDS:-_GUARD_WORDS] = words.view(np.uint32)
        self._whole = cupy.asarray(whole)
        self.words = self._whole[_GUARD_WORDS:-_GUARD_WORDS].view(words.dtype)

    @property
    def address(self) -> int:
        """Device address of the first word, 256-byte aligned."""
        return int(self.words.data.ptr)

    def is_guarded(self) -> bool:
        """Whether both canaries are unchanged."""
        return all(
            bool((guard.get() == _GUARD).all()) for guard in (self._whole[:_GUARD_WORDS], self._whole[-_GUARD_WORDS:])
        )


#: The bits of an fp32 NaN.
FP32_NAN = 0x7FFFFFFF
#: Words of one canary, and their value.
_GUARD_WORDS = 256
_GUARD = 0xA5C3A5C3


class PlanOnDevice:
    """A plan's words and its workspace, which one stream may use at a time, or the two launches of a pair."""

    def __init__(
        self,
        launchable: Launchable,
        index: int = 0,
        *,
        spin_limit_cycles: int = Limits.spin_limit_cycles,
        programmatic: bool = False,
        traced: bool = False,
        first: PlanOnDevice | None = None,
    ) -> None:
        """The plan of launch `index`. `programmatic`: its launches are programmatic dependent launches; `traced`: its
        kernel leaves stamps; `first`: the launch whose workspace it shares, as the second of two.

        Raises:
            LaunchRefused: something differs from what was tied.
        """
        launchable.check()
        self.plan = plan = launchable.plans[index]
        self.ties = launchable.ties
        self.programmatic = programmatic
        self.spin_limit_cycles = spin_limit_cycles
        self._words = Guarded(plan.words)
        self._layout = workspace_layout(plan)
        num_words = self._layout["bytes"] // WORD_BYTES
        workload, tiling = plan.graph.workload, plan.graph.tiling
        self._maps = tensor_maps(workload, tiling) if tiling.engine is Engine.WGMMA else ()
        self._first_tasks = first_tasks(plan)
        self._is_second = first is not None
        zeros = np.zeros(num_words, dtype=np.uint32)
        self._workspace: Guarded = Guarded(zeros) if first is None else first._workspace
        num_rows = plan.plan.num_tasks + plan.plan.num_ctas if traced else 0
        self._stamps = cupy.full((num_rows, STAMP_WORDS), -1, dtype=cupy.int64)

    @property
    def workspace_address(self) -> int:
        """Address of the workspace on the device."""
        return self._workspace.address

    def parameter(self, ops: tuple[OpBuffers, ...]) -> bytes:
        """The kernel's parameter for one launch over `ops`.

        Raises:
            LaunchRefused: the buffers do not belong to the plan's workload.
        """
        given, proven = [(op.m, op.n, op.k) for op in ops], self.plan.graph.workload.tile_ops
        if given != [(op.m, op.n, op.k) for op in proven]:
            raise LaunchRefused(f"buffers of {given} for {self.plan.graph.workload.describe()}: the shapes must agree")
        args = pack_args(
            self._words.address,
            self._workspace.address,
            self.spin_limit_cycles,
            self.plan,
            ops,
            is_dependent=self.programmatic,
            is_second=self._is_second,
            trace_address=self._stamps.data.ptr,
        )
        if self._maps:
            dtype = self.plan.graph.workload.dtype
            encoded = (encode(m, dtype, getattr(ops[m.op], m.operand)) for m in self._maps)
            args = extend_args(args, self._first_tasks, tuple(encoded))
        return args

    def poison_sums(self) -> None:
        """Sets the sums of parts of tiles to NaN; on the current stream."""
        fill(self._workspace.words[self._layout["slots"] // WORD_BYTES :], FP32_NAN)

    def overwritten(self) -> str:
        """What a launch overwrote although it must not, as text; empty if nothing."""
        if not np.array_equal(self._words.words.get(), self.plan.words):
            return "the plan"
        if not self._words.is_guarded():
            return "memory around the plan"
        return "" if self._workspace.is_guarded() else "memory around the workspace"

    def abort_record(self) -> AbortRecord | None:
        """The record of the first wait that expired; None if no launch was aborted."""
        words = self._workspace.words[32:38].get()
        raised, _, _, seen, expected, _ = words.tolist()
        if not raised:
            return None
        _, task, signal, _, _, cta = words.view(np.int32).tolist()  # the start gate has no task and no signal: -1
        return AbortRecord(task=task, signal=signal, seen=seen, expected=expected, cta=cta)

    def refused(self) -> RefusedLaunch | None:
        """The first invalid length or page of new tokens that a launch found; None if there was none."""
        first = REFUSED_OFFSET_BYTES // WORD_BYTES
        return refused_launch(self._workspace.words[first : first + REFUSED_WORDS].get().tolist())

    def clear_stamps(self) -> None:
        """Clears the stamps of earlier launches; on the current stream."""
        self._stamps.fill(-1)

    def stamps(self) -> Stamps:
        """The stamps of the last launch of a traced build."""
        return self._stamps.get()  # type: ignore[no-any-return]

    def signals(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The signals' present values."""
        first = self._layout["signals"] // WORD_BYTES
        return self._workspace.words[first : first + self.plan.plan.num_signals].get()  # type: ignore[no-any-return]


def held_clusters(function: int) -> tuple[tuple[int, int], ...]:
    """CTAs of a cluster, and how many clusters of such CTAs the card holds according to the driver, one CTA per SM: for
    any kernel, with the maximum shared memory of a CTA. Empty on GPUs without clusters."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    if properties["major"] < 9:
        return ()
    handle, smem_bytes = driver.CUfunction(function), int(properties["sharedMemPerBlockOptin"])
    names = driver.CUfunction_attribute
    check(driver.cuFuncSetAttribute(handle, names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes))
    check(driver.cuFuncSetAttribute(handle, names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
    found = []
    for size in ASKED_CLUSTERS:
        config = launch_config(size, 32, smem_bytes, 0)
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value = driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = size, 1, 1
        attribute.value = value
        config.attrs, config.numAttrs = [attribute], 1
        found.append((size, int(check(driver.cuOccupancyMaxActiveClusters(handle, config)))))
    return tuple(found)
