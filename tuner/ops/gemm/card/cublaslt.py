"""The few calls of cuBLASLt that one GEMM in nn.Linear layout needs, through ctypes.

Source: cuBLAS library documentation, "Using the cuBLASLt API" (types, attributes and enumerators by number).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int8, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from tuner.core.problem.rows.dtype import VendorType
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Activation
from tuner.core.trial.reports.library_recipe import LibraryCall
from tuner.errors import WorkerError
from tuner.workers.source.library_epilogue import describe, split_epilogue

COMPUTE_32F = 68
R_32F = 0
DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_BIAS_DATA_TYPE = 3, 4, 7, 8, 26
#: The attribute that says whether sums may have fewer bits than fp32.
DESC_FAST_ACCUM = 25
PREFERENCE_MAX_WORKSPACE_BYTES = 1
OP_N, OP_T = 0, 1
#: Number and type of each attribute of an algorithm. Source: cublasLtMatmulAlgoConfigAttributes_t.
ALGORITHM_ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "id": (0, c_int32),
    "tile_id": (1, c_uint32),
    "splitk_num": (2, c_int32),
    "reduction_scheme": (3, c_uint32),
    "cta_swizzling": (4, c_uint32),
    "custom_option": (5, c_uint32),
    "stages_id": (6, c_uint32),
    "inner_shape_id": (7, c_uint16),
    "cluster_shape_id": (8, c_uint16),
}
#: The workspace that PyTorch gives cuBLASLt on Hopper, bytes.
WORKSPACE_BYTES = 32 * 2**20
#: Number of algorithms that are requested from the heuristic.
NUM_ALGORITHMS = 8


class Heuristic(ctypes.Structure):
    _fields_ = (
        ("algo", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@cache
def load_library() -> ctypes.CDLL:
    """The library itself, without a handle; this needs no card, and takes some tenths of a second once.

    Raises:
        WorkerError: it is not installed.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        path = load_nvidia_dynamic_lib("cublasLt").abs_path
    except Exception as error:  # the finder raises several types
        raise WorkerError(f"cuBLASLt cannot be loaded: {error}") from error
    return ctypes.CDLL(path)


class CublasLt:
    """A library handle."""

    def __init__(self) -> None:
        """Loads the library.

        Raises:
            WorkerError: it is not installed, or does not support the card.
        """
        self._lib = load_library()
        self._lib.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._lib.cublasLtGetVersion())
        self.handle = c_void_p()
        self.call("cublasLtCreate", byref(self.handle))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls `name`, and raises WorkerError if it fails."""
        status = getattr(self._lib, name)(*arguments)
        if status != 0:
            raise WorkerError(f"{name} failed with cublasStatus {status}")

    def raw(self, name: str) -> Any:
        """The function itself, for callers that judge its status."""
        return getattr(self._lib, name)

    def algorithms(self, descriptor: c_void_p, a: c_void_p, b: c_void_p, d: c_void_p) -> list[Heuristic]:
        """The heuristic's algorithms for a product with these layouts, the best guess first.

        Raises:
            WorkerError: the library has none.
        """
        preference, limit, found = c_void_p(), c_size_t(WORKSPACE_BYTES), c_int(0)
        self.call("cublasLtMatmulPreferenceCreate", byref(preference))
        self.call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            PREFERENCE_MAX_WORKSPACE_BYTES,
            byref(limit),
            c_size_t(ctypes.sizeof(limit)),
        )
        results = (Heuristic * NUM_ALGORITHMS)()
        status = self.raw("cublasLtMatmulAlgoGetHeuristic")(
            self.handle, descriptor, a, b, d, d, preference, c_int(NUM_ALGORITHMS), results, byref(found)
        )
        self.call("cublasLtMatmulPreferenceDestroy", preference)
        offered = [results[i] for i in range(found.value) if results[i].state == 0] if status == 0 else []
        if not offered:
            raise WorkerError(f"cuBLASLt offers no algorithm for this GEMM (cublasStatus {status})")
        return offered


class LibraryGemm:
    """C = activation(A W^T + bias) + R by the library, to which our row-major C[m, n] is a column-major D[n, m].

    It computes what `split_epilogue` gives it; n is the number of rows of W, two per column of a gated op.
    """

    def __init__(
        self, lt: CublasLt, op: TileOp, data_type: VendorType, bias_address: int, out_type: VendorType | None = None
    ) -> None:
        """Requests algorithms from the heuristic; `data_type` is that of all operands, except that D may have a
        different one, `out_type`.

        Raises:
            WorkerError: the library has none.
        """
        self._lt = lt
        self._data_type = data_type
        does = {part.field for part in split_epilogue(op)[0]}
        has_bias = "bias" in does
        #: Whether the product adds a residual.
        self.can_add = "residual" in does
        fused = (op.activation if "activation" in does else Activation.IDENTITY).row.library
        assert fused is not None, "split_epilogue gives it only what it supports"
        self._fused = fused[has_bias]
        self._descriptor = c_void_p()
        lt.call("cublasLtMatmulDescCreate", byref(self._descriptor), COMPUTE_32F, R_32F)
        self._set(DESC_TRANSA, c_int32(OP_T))
        self._set(_DESC_TRANSB, c_int32(OP_N))
        self._set(_DESC_EPILOGUE, c_uint32(self._fused.number))
        if out_type is not None:  # for 8-bit elements, as PyTorch requests it
            self._set(DESC_FAST_ACCUM, c_int8(1))
        if has_bias:
            self._set(_DESC_BIAS_POINTER, c_void_p(bias_address))
            self._set(_DESC_BIAS_DATA_TYPE, c_int32(data_type.number))
        rows = self._prepared(op)
        self._w = self._layout(data_type.number, op.k, op.weight_rows)
        self._a = self._layout(data_type.number, op.k, rows)
        self._c = self._layout((out_type or data_type).number, op.weight_rows, rows)
        self._algorithms = lt.algorithms(self._descriptor, self._w, self._a, self._c)

    def _prepared(self, op: TileOp) -> int:
        """The rows of A, after everything else is set that the heuristic must know."""
        return op.m

    def _set(self, attribute: int, value: Any) -> None:
        self._lt.call(
            "cublasLtMatmulDescSetAttribute",
            self._descriptor,
            attribute,
            byref(value),
            c_size_t(ctypes.sizeof(value)),
        )

    def _layout(self, data_type: int, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        self._lt.call(
            "cublasLtMatrixLayoutCreate",
            byref(layout),
            data_type,
            c_uint64(rows),
            c_uint64(columns),
            ctypes.c_int64(rows),
        )
        return layout

    @property
    def num_algorithms(self) -> int:
        """Number of algorithms of the heuristic, the best guess first."""
        return len(self._algorithms)

    def recipe(self, op: TileOp, *, algorithm: int) -> LibraryCall:
        """How to make this call with the heuristic's `algorithm`-th choice."""
        chosen, rest = self._algorithms[algorithm], split_epilogue(op)[1]
        return LibraryCall(
            op=op.name,
            rows=op.weight_rows,
            columns=op.m,
            k=op.k,
            data_type=self._data_type.name,
            epilogue=self._fused.name,
            beta=int(self.can_add),
            algorithm=self._attributes(chosen),
            heuristic_index=algorithm,
            workspace_bytes=int(chosen.workspace_bytes),
            afterwards=describe(op, rest),
        )

    def _attributes(self, chosen: Heuristic) -> dict[str, int]:
        """The algorithm's attributes; those that this version of the library does not have are omitted."""
        found = {}
        for name, (attribute, kind) in ALGORITHM_ATTRIBUTES.items():
            value, written = kind(0), c_size_t(0)
            status = self._lt.raw("cublasLtMatmulAlgoConfigGetAttribute")(
                byref(chosen.algo), attribute, byref(value), c_size_t(ctypes.sizeof(value)), byref(written)
            )
            if status == 0:
                found[name] = int(value.value)
        return found

    def launch(self, a: int, w: int, c: int, residual: int, workspace: int, stream: int, *, algorithm: int = 0) -> None:
        """Enqueues the product by the heuristic's `algorithm`-th choice; addresses are on the device, and `workspace`
        has WORKSPACE_BYTES. A `residual` of 0 is not added.

        Raises:
            WorkerError: the library refuses the algorithm.
        """
        adds = self.can_add and residual != 0
        one, beta, added = c_float(1.0), c_float(float(adds)), residual if adds else c
        self._lt.call(
            "cublasLtMatmul", self._lt.handle, self._descriptor, byref(one), c_void_p(w), self._w, c_void_p(a), self._a,
            byref(beta), c_void_p(added), self._c, c_void_p(c), self._c, byref(self._algorithms[algorithm].algo),
            c_void_p(workspace), c_size_t(WORKSPACE_BYTES), c_void_p(stream),
        )  # fmt: skip
