"""The CUDA driver through ctypes: the functions needed to launch an artifact."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tuner.core.problem.dtype import MAP_TYPES
from tuner.runtime.binding.native import RuntimeFailure

#: CUfunction_attribute.
MAX_DYNAMIC_SHARED_SIZE_BYTES, PREFERRED_SHARED_MEMORY_CARVEOUT, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 8, 9, 14
#: Maximum share of an SM's memory that can be shared memory, percent.
MOST_CARVEOUT = 100
#: CUlaunchAttributeID.
COOPERATIVE, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 6
#: No interleave, 128-byte swizzle, 128-byte promotion, zeros out of bounds.
_MAP_MODES = (0, 3, 2, 0)
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_MULTIPROCESSOR_COUNT = 16
#: CUstream_flags, and CUdevResourceType.
_NON_BLOCKING, _SM_RESOURCE = 1, 1


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a union of 64 bytes, of which a switch uses the first four."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class DevResource(ctypes.Structure):
    """CUdevResource, from which the number of SMs is read; newer drivers may write more of it."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("pad", ctypes.c_byte * 92),
        ("num_sms", ctypes.c_uint32),
        ("rest", ctypes.c_byte * 156),
    )


class Driver:
    """Calls of one driver library; each raises RuntimeFailure with the name of its error."""

    def __init__(self, path: str) -> None:
        try:
            self._cuda = ctypes.CDLL(path)
        except OSError as error:
            raise RuntimeFailure(-1, f"{path} cannot be loaded: is an NVIDIA driver installed? ({error})") from error

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver."""
        status = getattr(self._cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeFailure(-1, f"{name}: {(text.value or b'').decode()} ({status})")

    def check_context(self) -> None:
        """Checks that this thread has a context, which all other calls need.

        Raises:
            RuntimeFailure: it has no context.
        """
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if not context:
            remedy = 'create one, e.g. with torch.zeros(1, device="cuda") or cupy.zeros(1)'
            raise RuntimeFailure(-1, f"this thread has no CUDA context: {remedy}")

    def device_name(self) -> str:
        """Device of the current context, in the array libraries' form."""
        device = ctypes.c_int()
        self.call("cuCtxGetDevice", ctypes.byref(device))
        return f"cuda:{device.value}"

    def function(self, cubin: bytes, name: str) -> ctypes.c_void_p:
        """A kernel of a cubin, loaded in the current context; it stays loaded."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def set_attribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> None:
        """Sets an attribute of a kernel, by its number in CUfunction_attribute."""
        self.call("cuFuncSetAttribute", function, attribute, value)

    @contextmanager
    def own_stream(self) -> Iterator[ctypes.c_void_p]:
        """A stream for urgent work; on exit, everything that was enqueued there has ended. The null stream would not
        do, since no other stream waits for it, and a capture elsewhere may forbid it.
        """
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        try:
            yield stream
            self.call("cuStreamSynchronize", stream)
        finally:
            self._cuda.cuStreamDestroy_v2(stream)

    def memory(self, num_bytes: int) -> int:
        """Zeroed memory of the current context, which is never freed."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        self._set_zero(address.value, num_bytes)
        return address.value

    def zero(self, address: int, num_bytes: int) -> None:
        """Zeroes some of the device's memory, after all enqueued work has ended."""
        self.call("cuCtxSynchronize")
        self._set_zero(address, num_bytes)

    def _set_zero(self, address: int, num_bytes: int) -> None:
        with self.own_stream() as stream:
            size = ctypes.c_size_t(num_bytes)
            self.call("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(0), size, stream)

    def uploaded(self, data: bytes) -> int:
        """The address of a copy on the device, which is never freed."""
        address = self.memory(len(data))
        with self.own_stream() as stream:
            size = ctypes.c_size_t(len(data))
            self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), data, size, stream)
        return address

    def word(self, address: int) -> int:
        """32 bits of the device's memory, after all enqueued work has ended."""
        value = ctypes.c_uint32()
        self.call("cuCtxSynchronize")
        with self.own_stream() as stream:
            size = ctypes.c_size_t(4)
            self.call("cuMemcpyDtoHAsync_v2", ctypes.byref(value), ctypes.c_uint64(address), size, stream)
        return value.value

    def ctas_per_sm(self, function: ctypes.c_void_p, threads: int, smem_bytes: int) -> int:
        """How many CTAs fit on an SM at once, according to the driver."""
        per_sm = ctypes.c_int()
        ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.call(ask, ctypes.byref(per_sm), function, threads, ctypes.c_size_t(smem_bytes))
        return per_sm.value

    def max_clusters(self, function: ctypes.c_void_p, grid: int, threads: int, smem_bytes: int, stream: int) -> int:
        """How many clusters of a kernel with a fixed cluster size fit on the device at once, according to the
        driver."""
        found = ctypes.c_int()
        shape = {"grid": (grid, 1, 1), "block": (threads, 1, 1), "dynamic_smem_bytes": smem_bytes}
        config = LaunchConfig(**shape, stream=stream)
        self.call("cuOccupancyMaxActiveClusters", ctypes.byref(found), function, ctypes.byref(config))
        return found.value

    def num_sms(self, stream: int) -> tuple[int, int]:
        """Number of SMs of the stream's context, e.g. a green one; and of the whole device."""
        context, device, of_device = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        self.call("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context))
        self.call("cuCtxGetDevice", ctypes.byref(device))
        self.call("cuDeviceGetAttribute", ctypes.byref(of_device), _MULTIPROCESSOR_COUNT, device)
        resource, ask = DevResource(), getattr(self._cuda, "cuCtxGetDevResource", None)  # from CUDA 12.4 on
        if ask is None or ask(context, ctypes.byref(resource), _SM_RESOURCE) or not resource.num_sms:
            return of_device.value, of_device.value
        return min(resource.num_sms, of_device.value), of_device.value

    def stream_id(self, stream: int) -> int:
        """An id that no other stream of the process ever has, unlike its address."""
        found = ctypes.c_ulonglong()
        self.call("cuStreamGetId", ctypes.c_void_p(stream), ctypes.byref(found))
        return found.value

    def is_capturing(self, stream: int) -> bool:
        """Whether work on the stream is being captured in a graph, or a capture elsewhere forbids the query."""
        found = ctypes.c_int()
        return bool(self._cuda.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(found)) or found.value)

    def tensor_map(self, recipe: Mapping[str, Any], address: int) -> bytes:
        """The encoded tensor map of a matrix, stored at an address that is a multiple of 64."""
        rank = len(recipe["dims"])
        buffer = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        aligned = -(-ctypes.addressof(buffer) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        corners = [(ctypes.c_int32 * 2)(*corner) for corner in recipe.get("corners", ())]
        box = (
            [ctypes.c_uint32(size) for size in recipe["box"]] if corners else [(ctypes.c_uint32 * rank)(*recipe["box"])]
        )
        self.call(
            "cuTensorMapEncodeIm2col" if corners else "cuTensorMapEncodeTiled",
            ctypes.c_void_p(aligned),
            MAP_TYPES[recipe["data_type"]],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*recipe["dims"]),
            (ctypes.c_uint64 * (rank - 1))(*recipe["strides_bytes"]),
            *corners,
            *box,
            (ctypes.c_uint32 * rank)(*recipe["element_strides"]),
            *_MAP_MODES,
        )
        return ctypes.string_at(aligned, _MAP_BYTES)


class Launch:
    """One launch with packed arguments: enqueuing it is one driver call."""

    def __init__(
        self,
        driver: Driver,
        function: ctypes.c_void_p,
        parameter: bytes,
        *,
        grid: Sequence[int],
        block: Sequence[int],
        smem_bytes: int,
        switches: Collection[int],
        plain_switches: Collection[int],
        dependent_offset: int | None,
    ) -> None:
        """`switches`: attributes of the launch that are on; `plain_switches`: the same for a normal launch.
        `dependent_offset`: the position in the parameter that tells whether the launch is programmatic, if there is
        one."""
        self._driver, self._function = driver, function

        def way(parameter: bytes, switches: Collection[int]) -> _Way:
            return _Way(parameter, switches, tuple(grid), tuple(block), smem_bytes)

        plain = bytearray(parameter)
        if dependent_offset is not None:
            plain[dependent_offset : dependent_offset + 4] = bytes(4)
        self._usual, self._plain = way(parameter, switches), way(bytes(plain), plain_switches)

    def enqueue(self, stream: int, *, no_pdl: bool = False) -> None:
        """Enqueues it on a stream, given by its address; it may be captured. `no_pdl`: as a normal launch, so that it
        begins when everything before it in the stream has ended.

        Raises:
            RuntimeFailure: the driver refuses.
        """
        way = self._plain if no_pdl else self._usual
        way.config.stream = stream
        self._driver.call("cuLaunchKernelEx", ctypes.byref(way.config), self._function, way.pointers, None)


class _Way:
    """The driver's arguments for one launch."""

    def __init__(
        self,
        parameter: bytes,
        switches: Collection[int],
        grid: tuple[int, ...],
        block: tuple[int, ...],
        smem_bytes: int,
    ) -> None:
        self._parameter = ctypes.create_string_buffer(parameter, len(parameter))
        self.pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._parameter))
        attributes = [LaunchAttribute(id=switch, value=1) for switch in switches]
        self._attributes = (LaunchAttribute * len(attributes))(*attributes)
        self.config = LaunchConfig(
            grid=grid,
            block=block,
            dynamic_smem_bytes=smem_bytes,
            attributes=self._attributes,
            num_attributes=len(attributes),
        )


@functools.cache
def loaded(path: str) -> Driver:
    """The driver with this name, loaded once."""
    return Driver(path)


def driver() -> Driver:
    """The machine's driver, or the library that ``TUNER_LIBCUDA`` names.

    Raises:
        RuntimeFailure: there is no driver.
    """
    return loaded(os.environ.get("TUNER_LIBCUDA") or "libcuda.so.1")
