"""Encodes tensor maps for the device with the driver."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from tuner.core.problem.tile_op import Im2col
from tuner.core.problem.workload import Dtype
from tuner.errors import WorkerError

from ...source.launch_args import MAP_BYTES
from ...source.tensor_maps import MapSizes, TensorMap

_ALIGNMENT_BYTES = 64
#: CUtensorMapSwizzle, CUtensorMapL2promotion by the bytes that a miss loads. Source: CUDA driver API, "Tensor Map
#: Object Management".
_SWIZZLE_128B, _PROMOTIONS = 3, {128: 2, 256: 3}


@lru_cache(maxsize=4096)
def encode(tensor_map: MapSizes, dtype: Dtype, address: int, promotion_bytes: int = 128) -> bytes:
    """The opaque 128 bytes of a map over the matrix at `address`, a multiple of 16; a miss in the L2 loads 128 or 256
    bytes.

    Raises:
        WorkerError: the driver refuses it.
    """
    rank, driver = len(tensor_map.dims), ctypes.CDLL("libcuda.so.1")
    buffer = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT_BYTES)
    aligned = -(-ctypes.addressof(buffer) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    im2col = tensor_map.im2col if isinstance(tensor_map, TensorMap) else None
    status = (driver.cuTensorMapEncodeIm2col if im2col else driver.cuTensorMapEncodeTiled)(
        ctypes.c_void_p(aligned),
        dtype.row.map_type.number,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*tensor_map.dims),
        (ctypes.c_uint64 * (rank - 1))(*tensor_map.strides_bytes),
        *(_pixels(im2col, tensor_map.box) if im2col else [(ctypes.c_uint32 * rank)(*tensor_map.box)]),
        (ctypes.c_uint32 * rank)(*(im2col.strides if im2col else [1] * rank)),
        0,
        _SWIZZLE_128B,
        _PROMOTIONS[promotion_bytes],
        0,
    )
    if status != 0:
        raise WorkerError(f"the driver cannot encode the tensor map {tensor_map}: status {status}")
    return ctypes.string_at(aligned, MAP_BYTES)


def _pixels(im2col: Im2col, box: tuple[int, ...]) -> list[Any]:
    """Both corners, the channels of a pixel, and the number of pixels."""
    lower, upper = ((ctypes.c_int32 * 2)(corner, corner) for corner in (im2col.lower, im2col.upper))
    return [lower, upper, *(ctypes.c_uint32(size) for size in box)]
