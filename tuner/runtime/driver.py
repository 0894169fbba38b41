"""The CUDA driver by ctypes: what it takes to load an artifact's kernels, and to launch them."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

from .native import RuntimeFailure

#: Of `tuner_status`: what the driver refuses, and a driver that is not there.
_CUDA_ERROR, _NO_DRIVER = -4, -3
#: CUfunction_attribute, CUdevice_attribute, CUlaunchAttributeID. Source: CUDA driver API.
_MOST_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_NUM_SMS = 16
COOPERATIVE, PROGRAMMATIC = 2, 6
#: CUtensorMapDataType. The maps of all kernels have no interleave, 128-byte swizzle and promotion, zeros outside.
_DATA_TYPES = {"CU_TENSOR_MAP_DATA_TYPE_FLOAT16": 6, "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": 9}
_HOW = (0, 3, 2, 0)
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a union of 64 bytes, of which a switch takes the first four."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Driver:
    """A driver library in the thread's current context."""

    def __init__(self, path: str) -> None:
        """Loads it.

        Raises:
            RuntimeFailure: it is not there.
        """
        try:
            self._cuda = ctypes.CDLL(path)
        except OSError as error:
            raise RuntimeFailure(_NO_DRIVER, f"{path} cannot be loaded: {error}") from error

    def load(self, cubin: bytes, kernel: str, *, shared_bytes: int, non_portable_cluster: bool) -> ctypes.c_void_p:
        """A kernel that may be launched with so much dynamic shared memory; its module stays loaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        self._call("cuFuncSetAttribute", function, _MOST_DYNAMIC_SHARED, shared_bytes)
        if non_portable_cluster:
            self._call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)
        return function

    def copy_to(self, address: int, data: bytes, stream: int) -> None:
        """To the device; `data` must live until the stream is done."""
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), _pointer(stream))

    def zero(self, address: int, num_bytes: int, stream: int) -> None:
        """Of the device."""
        self._call("cuMemsetD8Async", ctypes.c_uint64(address), 0, ctypes.c_size_t(num_bytes), _pointer(stream))

    def read(self, address: int, num_bytes: int) -> bytes:
        """From the device, once all that was enqueued is done."""
        self._call("cuCtxSynchronize")
        data = ctypes.create_string_buffer(num_bytes)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(num_bytes))
        return data.raw

    def synchronize(self, stream: int) -> None:
        """Until the stream is done."""
        self._call("cuStreamSynchronize", _pointer(stream))

    def encode_map(self, recipe: dict[str, Any], address: int, dims: Sequence[int]) -> bytes:
        """A tensor map of a manifest at this address, with these dimensions."""
        rank = len(dims)
        buffer = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        aligned = -(-ctypes.addressof(buffer) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        self._call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(aligned),
            _DATA_TYPES[recipe["data_type"]],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * (rank - 1))(*recipe["strides_bytes"]),
            (ctypes.c_uint32 * rank)(*recipe["box"]),
            (ctypes.c_uint32 * rank)(*recipe["element_strides"]),
            *_HOW,
        )
        return ctypes.string_at(aligned, _MAP_BYTES)

    def num_resident(self, function: ctypes.c_void_p, launch: dict[str, Any]) -> int:
        """CTAs of a launch that the device holds at once."""
        found, cluster = ctypes.c_int(), launch["cluster"][0]
        if cluster > 1:
            config = _config_of(launch, 0, [])
            self._call("cuOccupancyMaxActiveClusters", ctypes.byref(found), function, ctypes.byref(config))
            return found.value * int(cluster)
        device, num_sms, shared = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t(launch["dynamic_smem_bytes"])
        self._call("cuCtxGetDevice", ctypes.byref(device))
        self._call("cuDeviceGetAttribute", ctypes.byref(num_sms), _NUM_SMS, device)
        ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._call(ask, ctypes.byref(found), function, launch["block"][0], shared)
        return found.value * num_sms.value

    def launch(self, function: ctypes.c_void_p, launch: dict[str, Any], parameter: Any, stream: int) -> None:
        """Enqueues a launch of a manifest; `parameter` is a buffer with its one by-value struct."""
        switches = {COOPERATIVE: "cooperative", PROGRAMMATIC: "programmatic_dependent_launch"}
        config = _config_of(launch, stream, [switch for switch, name in switches.items() if launch[name]])
        values = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        self._call("cuLaunchKernelEx", ctypes.byref(config), function, values, None)

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeFailure(_CUDA_ERROR, f"{name} failed: {(text.value or b'?').decode()} ({status})")


def _config_of(launch: dict[str, Any], stream: int, switches: list[int]) -> _Config:
    attributes = (_Attribute * max(1, len(switches)))(*(_Attribute(id=switch, value=1) for switch in switches))
    return _Config(
        grid=tuple(launch["grid"]),
        block=tuple(launch["block"]),
        shared_bytes=launch["dynamic_smem_bytes"],
        stream=stream,
        attributes=attributes,
        num_attributes=len(switches),
    )


def _pointer(stream: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream)


@functools.cache
def driver() -> Driver:
    """That of this process. ``TUNER_LIBCUDA`` names another library than the machine's."""
    return Driver(os.environ.get("TUNER_LIBCUDA", "libcuda.so.1"))
