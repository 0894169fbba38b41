"""A tensor map as the recorder of driver calls encodes it."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.support.native.recorder import Recorder
from tuner.core.problem.workload import Dtype


def encoded(recorder: Recorder, tensor_map: Any, dtype: Dtype, address: int) -> bytes:
    """The map as the worker requests it from the driver."""
    rank, raw = len(tensor_map.dims), ctypes.create_string_buffer(192)
    at = -(-ctypes.addressof(raw) // 64) * 64
    im2col, box = getattr(tensor_map, "im2col", None), [(ctypes.c_uint32 * rank)(*tensor_map.box)]
    if im2col:
        corners = [(ctypes.c_int32 * 2)(corner, corner) for corner in (im2col.lower, im2col.upper)]
        box = [*corners, *map(ctypes.c_uint32, tensor_map.box)]
    (recorder.cuda.cuTensorMapEncodeIm2col if im2col else recorder.cuda.cuTensorMapEncodeTiled)(
        ctypes.c_void_p(at),
        {Dtype.FP16: 6, Dtype.BF16: 9}[dtype],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*tensor_map.dims),
        (ctypes.c_uint64 * (rank - 1))(*tensor_map.strides_bytes),
        *box,
        (ctypes.c_uint32 * rank)(*(im2col.strides if im2col else [1] * rank)),
        *(0, 3, 2, 0),
    )
    return ctypes.string_at(at, 128)
