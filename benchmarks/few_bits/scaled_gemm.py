"""cuBLASLt's products of fp8 operands, in its scale modes, with the best of its algorithms.

Source: cuBLAS library documentation, "Using the cuBLASLt API", cublasLtMatmulMatrixScale_t (12.9 and newer).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch

from benchmarks.attention.timing import fastest
from tuner.ops.gemm.card import cublaslt

from .quantised import Scaled

#: Rounds in which algorithms are timed.
_ROUNDS = 5
#: Attributes of a product. Source: cublasLtMatmulDescAttributes_t.
_TRANSA, _A_SCALE, _B_SCALE, _FAST, _A_MODE, _B_MODE = 3, 17, 18, 25, 31, 32
_R_8F_E4M3, _R_16BF = 28, 14


class Mode(Enum):
    """Scales of weights and of activations, by their numbers, and whether sums may keep only 14 bits."""

    TENSOR = (0, 0, True)
    ROW = (3, 3, True)
    BLOCK = (5, 4, False)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of one launch: y [m, n] = a [m, k] w [n, k]^T in bf16, times the scales."""

    a: Scaled
    w: Scaled
    y: torch.Tensor


class ScaledGemm:
    """One product, for each set of weights."""

    def __init__(self, lt: cublaslt.CublasLt, mode: Mode, sets: Sequence[Operands]) -> None:
        """Times all algorithms of the heuristic, and keeps the best.

        Raises:
            WorkerError: the library offers none, or refuses all.
        """
        self._lt, self._sets = lt, sets
        (m, k), n = sets[0].a.values.shape, sets[0].w.values.shape[0]
        of_weights, of_inputs, is_fast = mode.value
        self._descriptor = c_void_p()
        lt.call("cublasLtMatmulDescCreate", byref(self._descriptor), cublaslt.COMPUTE_32F, cublaslt.R_32F)
        self._set(_TRANSA, c_int32(cublaslt.OP_T))
        self._set(_FAST, c_int8(is_fast))
        self._set(_A_MODE, c_int32(of_weights))
        self._set(_B_MODE, c_int32(of_inputs))
        self._point(sets[0])
        self._w, self._a = self._layout(_R_8F_E4M3, k, n), self._layout(_R_8F_E4M3, k, m)
        self._y = self._layout(_R_16BF, n, m)
        self._workspace = torch.empty(cublaslt.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._algorithms = lt.algorithms(self._descriptor, self._w, self._a, self._y)
        self.algorithm = self._best()

    def _set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self._lt.call("cublasLtMatmulDescSetAttribute", self._descriptor, attribute, byref(value), size)

    def _point(self, operands: Operands) -> None:
        self._set(_A_SCALE, c_void_p(operands.w.scales.data_ptr()))
        self._set(_B_SCALE, c_void_p(operands.a.scales.data_ptr()))

    def _layout(self, kind: int, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        sizes = (c_uint64(rows), c_uint64(columns), c_int64(rows))
        self._lt.call("cublasLtMatrixLayoutCreate", byref(layout), kind, *sizes)
        return layout

    def launch(self, number: int, algorithm: int | None = None) -> None:
        """Enqueues the product of a set of weights."""
        operands, chosen = self._sets[number], self.algorithm if algorithm is None else algorithm
        self._point(operands)
        y = c_void_p(operands.y.data_ptr())
        self._lt.call(
            "cublasLtMatmul", self._lt.handle, self._descriptor, byref(c_float(1)),
            c_void_p(operands.w.values.data_ptr()), self._w, c_void_p(operands.a.values.data_ptr()), self._a,
            byref(c_float(0)), y, self._y, y, self._y, byref(self._algorithms[chosen].algo),
            c_void_p(self._workspace.data_ptr()),
            c_size_t(cublaslt.WORKSPACE_BYTES), c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip

    def _best(self) -> int:
        sets = range(len(self._sets))
        return fastest([[partial(self.launch, i, a) for i in sets] for a in range(len(self._algorithms))], _ROUNDS)
