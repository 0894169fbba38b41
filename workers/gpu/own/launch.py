"""The launches of a launch op on the card, from the arguments that its kind specifies."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Protocol

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

_FORMATS = {"pointer": "<Q", "int64": "<q", "int32": "<i", "float32": "<f"}
#: CTAs of a cluster beyond which a kernel must opt in. Source: CUDA C++ Programming Guide, "Thread Block Clusters".
_MOST_PORTABLE_CLUSTER = 8


class OnDevice(Protocol):
    """The interface of a launch op on the card."""

    launchable: OwnLaunchable

    def launch(self, ops: RunOperands, stream: int) -> None:
        """Enqueues all its launches over a run's operands."""

    def poison(self) -> None:
        """Sets all of its own memory that a run must write before it reads it to NaN, on the current stream."""

    def overwritten(self) -> str:
        """What a launch overwrote although it must not, in words; empty if nothing."""

    def abort_record(self) -> str | None:
        """The first invalid length or page, or the first wait that expired, in words."""

    def clear_stamps(self) -> None:
        """Clears the stamps of earlier launches; on the current stream."""

    def stamps(self) -> Stamps:
        """The stamps of the last launch of a traced build."""

    def unload(self) -> None:
        """Frees the module; no launch may be running."""


def on_device(
    launchable: OwnLaunchable, *, programmatic: bool, spin_limit_cycles: int = Limits.spin_limit_cycles
) -> OnDevice:
    """A launch op's kernels, loaded by its kind's folder ``card``, or else from its launches' arguments.

    Raises:
        LaunchRefused: something differs from what was tied, or the card cannot hold it.
    """
    make = getattr(part_of(launchable.op.KIND, "card"), "on_device", OwnOnDevice)
    made: OnDevice = make(launchable, programmatic=programmatic, spin_limit_cycles=spin_limit_cycles)
    return made


class OwnOnDevice:
    """The kernels of one build, and the op's workspace, which one stream may use at a time."""

    def __init__(
        self, launchable: OwnLaunchable, *, programmatic: bool, spin_limit_cycles: int = Limits.spin_limit_cycles
    ) -> None:
        """Loads the cubin, if everything is as it was tied.

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
        one = self._launches.launches[number]
        found = bytearray(one.parameter_bytes)
        for field, offset in zip(one.fields, one.offsets, strict=True):
            value = self._value(number, field, ops)
            data = value if isinstance(value, bytes) else struct.pack(_FORMATS[field.type], value)
            found[offset : offset + len(data)] = data
        return bytes(found)

    def _value(self, number: int, field: Field, ops: RunOperands) -> Any:
        if field.data is not None:
            return field.data
        if field.map is not None:
            tensor = field.map.tensor
            return encode(field.map, Dtype(self._dtypes[tensor]), int(ops.arrays[tensor].data.ptr))
        if field.tensor:
            return self._address(field.tensor, ops)
        if field.room is not None:
            return self._workspace.address + field.room
        if field.table is not None:
            return self._tables[number, field.name].address
        if field.is_spin_limit:
            return self._spin_limit
        return 0 if field.is_null else field.value

    def _address(self, tensor: str, ops: RunOperands) -> int:
        if tensor in ops.arrays:
            return int(ops.arrays[tensor].data.ptr)
        names = [f"{op.name}.w" for op in self.launchable.workload.tile_ops]
        return ops[names.index(tensor)].w

    def poison(self) -> None:
        """Sets memory that a launch has to write to NaN."""
        self._workspace.words[-(-self._launches.zero_bytes // 4) :].fill(FP32_NAN)

    def overwritten(self) -> str:
        """What a launch overwrote although it must not, in words; empty if nothing."""
        for (number, name), guarded in self._tables.items():
            table = next(one.table for one in self._launches.launches[number].fields if one.name == name)
            assert table is not None, name
            if not np.array_equal(guarded.words.get(), _words(table)):
                return f"the table {name} of {self._name}"
            if not guarded.is_guarded():
                return f"memory around the table {name} of {self._name}"
        return "" if self._workspace.is_guarded() else f"memory around the workspace of {self._name}"

    def abort_record(self) -> str | None:
        """Empty: its waits are unknown."""
        return None

    def clear_stamps(self) -> None:
        """There are none."""

    def stamps(self) -> Stamps:
        """None: a traced build of such a kind is refused earlier."""
        raise LaunchRefused(f"kernels of {self._name} leave no stamps")

    def unload(self) -> None:
        """Frees the module; no launch may be running."""
        check(driver.cuModuleUnload(self._module))


def _words(table: bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(table + bytes(-len(table) % 4), dtype=np.uint32)
