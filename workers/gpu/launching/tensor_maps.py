"""Encodes tensor maps for the device, by the driver."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from tuner.core.problem.workload import Dtype
from tuner.errors import WorkerError

from ...source.launch_args import MAP_BYTES
from ...source.tensor_maps import MapSizes

_ALIGNMENT_BYTES = 64
#: CUtensorMapSwizzle, CUtensorMapL2promotion by the bytes that a miss brings.
#: Source: CUDA driver API, "Tensor Map Object Management".
_SWIZZLE_128B, _PROMOTIONS = 3, {128: 2, 256: 3}


@lru_cache(maxsize=4096)
def encode(tensor_map: MapSizes, dtype: Dtype, address: int, promotion_bytes: int = 128) -> bytes:
    """The opaque 128 bytes of a map over the matrix at `address`, a multiple of 16; a miss in the L2 brings 128 or 256
    bytes.

    Raises:
        WorkerError: the driver refuses it.
    """
    rank = len(tensor_map.dims)
    buffer = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT_BYTES)
    aligned = -(-ctypes.addressof(buffer) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned),
        dtype.row.map_type.number,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*tensor_map.dims),
        (ctypes.c_uint64 * (rank - 1))(*tensor_map.strides_bytes),
        (ctypes.c_uint32 * rank)(*tensor_map.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        _SWIZZLE_128B,
        _PROMOTIONS[promotion_bytes],
        0,
    )
    if status != 0:
        raise WorkerError(f"cuTensorMapEncodeTiled failed with status {status} for {tensor_map}")
    return ctypes.string_at(aligned, MAP_BYTES)
