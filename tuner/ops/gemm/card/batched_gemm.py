"""Strided batched products by cuBLASLt, in column-major order: D_b = op(X_b) Y_b for each b.

Source: cuBLAS library documentation, "Using the cuBLASLt API", cublasLtMatrixLayoutAttribute_t.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int32, c_size_t, c_void_p

from tuner.core.problem.workload import Dtype
from tuner.ops.gemm.card.cublaslt import (
    COMPUTE_32F,
    DESC_TRANSA,
    OP_N,
    OP_T,
    R_32F,
    WORKSPACE_BYTES,
    CublasLt,
)
from tuner.workers.gpu.library.vendor import BatchedShape

_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_OFFSET = 5, 6


class BatchedGemm:
    """One strided batch of products."""

    def __init__(self, lt: CublasLt, dtype: Dtype, shape: BatchedShape) -> None:
        """Requests algorithms from the heuristic.

        Raises:
            WorkerError: the library has no algorithm.
        """
        self._lt, data_type = lt, dtype.row.library_type.number
        self._descriptor = c_void_p()
        lt.call("cublasLtMatmulDescCreate", byref(self._descriptor), COMPUTE_32F, R_32F)
        transposed = c_int32(OP_T if shape.is_transposed else OP_N)
        size = c_size_t(ctypes.sizeof(transposed))
        lt.call("cublasLtMatmulDescSetAttribute", self._descriptor, DESC_TRANSA, byref(transposed), size)
        rows, columns = (shape.k, shape.m) if shape.is_transposed else (shape.m, shape.k)
        self._x = self._layout(data_type, rows, columns, shape.batch, shape.x_stride)
        self._y = self._layout(data_type, shape.k, shape.n, shape.batch, shape.k * shape.n)
        out_type = R_32F if shape.is_wide else data_type
        self._d = self._layout(out_type, shape.m, shape.n, shape.batch, shape.m * shape.n)
        self._algorithms = lt.algorithms(self._descriptor, self._x, self._y, self._d)

    @property
    def num_algorithms(self) -> int:
        """Number of algorithms of the heuristic, the best guess first."""
        return len(self._algorithms)

    def launch(self, x: int, y: int, d: int, workspace: int, stream: int, *, algorithm: int) -> None:
        """Enqueues all products; addresses are on the device, and `workspace` has WORKSPACE_BYTES.

        Raises:
            WorkerError: the library refuses the algorithm.
        """
        one, zero = c_float(1.0), c_float(0.0)
        self._lt.call(
            "cublasLtMatmul", self._lt.handle, self._descriptor, byref(one), c_void_p(x), self._x, c_void_p(y), self._y,
            byref(zero), c_void_p(d), self._d, c_void_p(d), self._d, byref(self._algorithms[algorithm].algo),
            c_void_p(workspace), c_size_t(WORKSPACE_BYTES), c_void_p(stream),
        )  # fmt: skip

    def _layout(self, data_type: int, rows: int, columns: int, batch: int, stride: int) -> c_void_p:
        layout, sizes = c_void_p(), (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        self._lt.call("cublasLtMatrixLayoutCreate", byref(layout), data_type, *sizes)
        for attribute, value in (
            (_LAYOUT_BATCH_COUNT, c_int32(batch)),
            (_LAYOUT_BATCH_OFFSET, ctypes.c_int64(stride)),
        ):
            size = c_size_t(ctypes.sizeof(value))
            self._lt.call("cublasLtMatrixLayoutSetAttribute", layout, attribute, byref(value), size)
        return layout
