"""The launches of a launch op on the card, from the arguments that its kind specifies."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from tuner.core.insight.traces.tracing import Stamps
from tuner.core.plan.op_launches import Field, OpLaunch
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.trial.limits import Limits

from ...source.launchable import LaunchRefused
from ...source.own_launchable import OwnLaunchable
from ..launching.launch import (
    FP32_NAN,
    Guarded,
    check,
    cooperative_attribute,
    launch_config,
    num_sms_of_context,
    programmatic_attribute,
)
from ..launching.tensor_maps import encode
from ..tensors.op_data import RunOperands

#: CTAs of a cluster beyond which a kernel must opt in. Source: CUDA C++ Programming Guide, "Thread Block Clusters".
_MOST_PORTABLE_CLUSTER = 8


class OwnOnDevice:
    """The kernels of one build, and the op's workspace, which one stream may use at a time."""

    def __init__(
        self, launchable: OwnLaunchable, *, programmatic: bool, spin_limit_cycles: int = Limits.spin_limit_cycles
    ) -> None:
        """Loads the cubin, if plans, source and build still match.

        Raises:
            LaunchRefused: something has changed, or the card cannot hold all CTAs of a launch that needs them.
        """
        launchable.check()
        self.launchable, self._programmatic, self._spin_limit = launchable, programmatic, spin_limit_cycles
        self._name, self._dtypes = (
            launchable.op.name,
            {one.name: one.dtype for one in launchable.op.tensors(launchable.workload.dtype)},
        )
        self.plan = launchable.plan
        self._launches = launchable.launches
        self._cubin = launchable.cubin  # the driver may read it until it is unloaded
        self._module = check(driver.cuModuleLoadData(self._cubin))
        self._functions = [self._function(one) for one in self._launches.launches]
        words = np.full(max(1, -(-self._launches.workspace_bytes // 4)), FP32_NAN, dtype=np.uint32)
        words[: -(-self._launches.zero_bytes // 4)] = 0
        self._workspace = Guarded(words)
        self._tables = {
            (number, field.name): Guarded(_words(field.table))
            for number, one in enumerate(self._launches.launches)
            for field in one.fields
            if field.table is not None
        }
        self._stamps: Any = None
        if launchable.traced_tasks:
            of_kind: Any = part_of(launchable.op.KIND, "stamps")
            self._stamps = cupy.zeros(of_kind.shape_of(self.plan, launchable.traced_tasks), dtype=cupy.int64)

    def _function(self, one: OpLaunch) -> Any:
        function = check(driver.cuModuleGetFunction(self._module, one.kernel.encode()))
        names = driver.CUfunction_attribute
        smem = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(function, smem, one.smem_bytes))
        if one.cluster > _MOST_PORTABLE_CLUSTER:
            check(driver.cuFuncSetAttribute(function, names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        per_sm = check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, one.num_threads, one.smem_bytes))
        held = int(per_sm) * num_sms_of_context()
        if held < (one.num_ctas if one.needs_all_ctas else one.cluster):
            problem = f"{self._name}, kernel {one.kernel}: {one.num_ctas} CTAs, but the card holds {held} at once"
            raise LaunchRefused(problem)
        config = launch_config(one.cluster, one.num_threads, one.smem_bytes, 0)
        if one.cluster > 1 and int(check(driver.cuOccupancyMaxActiveClusters(function, config))) < 1:
            raise LaunchRefused(
                f"{self._name}, kernel {one.kernel}: the card cannot hold a cluster of {one.cluster} CTAs"
            )
        return function

    def launch(self, ops: RunOperands, stream: int) -> None:
        """Enqueues all its launches over a run's operands."""
        for number, (one, function) in enumerate(zip(self._launches.launches, self._functions, strict=True)):
            args = self.parameter(number, ops)
            kept = ctypes.create_string_buffer(args, len(args))  # the driver copies it
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
            config = launch_config(one.num_ctas, one.num_threads, one.smem_bytes, stream)
            attributes = [programmatic_attribute()] if self._programmatic and one.waits else []
            attributes += [cooperative_attribute()] if one.needs_all_ctas else []
            config.attrs, config.numAttrs = attributes, len(attributes)
            check(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))

    def parameter(self, number: int, ops: RunOperands) -> bytes:
        """The struct of one of its launches."""
        return self._launches.launches[number].parameter(lambda field: self._value(number, field, ops))

    def _value(self, number: int, field: Field, ops: RunOperands) -> Any:
        if field.map is not None:
            tensor = field.map.tensor
            return encode(field.map, Dtype(self._dtypes[tensor]), self.address_of(tensor, ops))
        if field.tensor:
            return self.address_of(field.tensor, ops)
        if field.room is not None:
            return self._workspace.address + field.room
        if field.table is not None:
            return self._tables[number, field.name].address
        if field.is_spin_limit:
            return self._spin_limit
        if field.is_null:
            return 0 if field.name != "trace" or self._stamps is None else int(self._stamps.data.ptr)
        return field.value

    def address_of(self, tensor: str, ops: RunOperands) -> int:
        """The address of a tensor of a run: an array of the launch ops, or weights of a tile op."""
        if tensor in ops.arrays:
            return int(ops.arrays[tensor].data.ptr)
        names = [f"{op.name}.w" for op in self.launchable.workload.tile_ops]
        return ops[names.index(tensor)].w

    def poison(self) -> None:
        """Sets memory that a launch has to write to NaN."""
        self._workspace.words[-(-self._launches.zero_bytes // 4) :].fill(FP32_NAN)

    def overwritten(self) -> str:
        """Describes memory that a launch overwrote without permission; empty if there is none."""
        for (number, name), guarded in self._tables.items():
            table = next(one.table for one in self._launches.launches[number].fields if one.name == name)
            assert table is not None, name
            if not np.array_equal(guarded.words.get(), _words(table)):
                return f"the table {name} of {self._name}"
            if not guarded.is_guarded():
                return f"memory around the table {name} of {self._name}"
        return "" if self._workspace.is_guarded() else f"memory around the workspace of {self._name}"

    def abort_record(self) -> str | None:
        """The first invalid input or expired wait that a launch has reported, as text."""
        begin, count = self._launches.status_at // 4, self._launches.status_words
        if not count:
            return None
        words = self._workspace.words[begin : begin + count].get().tolist()
        of_kind: Any = part_of(self.launchable.op.KIND, "launches")
        found = of_kind.report_of(words)
        return f"{self._name}: {found}" if found else None

    def clear_stamps(self) -> None:
        """Clears the stamps of earlier launches; on the current stream."""
        self._stamps.fill(0)

    def stamps(self) -> Stamps:
        """The stamps of the last launch of a traced build, in the form of its kind."""
        return self._stamps.get()  # type: ignore[no-any-return]

    def unload(self) -> None:
        """Frees the module; no launch may be running."""
        check(driver.cuModuleUnload(self._module))


def _words(table: bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(table + bytes(-len(table) % 4), dtype=np.uint32)
