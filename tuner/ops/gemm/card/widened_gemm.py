"""Products of an element type that cuBLASLt does not support: it multiplies them as fp32, to which they are widened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.dtype import VendorType
from tuner.core.problem.tile_op import TileOp
from tuner.core.trial.reports.library_recipe import LibraryCall
from tuner.ops.gemm.card.block_gemm import BlockGemm, LaidScales, is_block_scaled
from tuner.ops.gemm.card.converted_gemm import ConvertedGemm
from tuner.ops.gemm.card.cublaslt import CublasLt, LibraryGemm
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.tools import kernel_of

_FP32 = VendorType(name="CUDA_R_32F", number=0)
_THREADS, _MAX_CTAS = 256, 4096


class WidenedGemm:
    """One widened product. Weights and epilogue inputs are widened beforehand, as a user without a library for the type
    would do. All other tensors that a run reads or writes are converted in each run.
    """

    def __init__(self, lt: CublasLt, op: TileOp, dtype: Dtype, weights: set[int], row: int, tools: Any) -> None:
        """Takes the addresses of each slot's weights, and of what is added to each row, 0 if nothing is; `tools` has
        the kernels that convert.

        Raises:
            WorkerError: the library has no algorithm.
        """
        self._dtype = dtype
        self._widen = tools.get_function(kernel_of("tuner_widen", dtype))
        self._narrow = tools.get_function(kernel_of("tuner_narrow", dtype))
        #: The widened weights, by the address of the stored ones.
        self._weights = {address: self._wide(address, op.weight_rows * op.k) for address in weights}
        self._row = self._wide(row, op.weight_rows)
        self._a = cupy.empty((op.m, op.k), cupy.float32)
        self._c = cupy.empty((op.m, op.weight_rows), cupy.float32)
        self._gemm = LibraryGemm(lt, op, _FP32, int(self._row.data.ptr))

    def _wide(self, address: int, count: int) -> Any:
        wide = cupy.empty(count, cupy.float32)
        if address:
            _convert(self._widen, address, int(wide.data.ptr), count)
        return wide

    @property
    def num_algorithms(self) -> int:
        """Same as for `LibraryGemm`."""
        return self._gemm.num_algorithms

    def recipe(self, op: TileOp, *, algorithm: int) -> LibraryCall:
        """Same as for `LibraryGemm`, and says that the output is rounded."""
        call = self._gemm.recipe(op, algorithm=algorithm)
        steps = [f"round to {self._dtype}", *filter(None, [call.afterwards])]
        return replace(call, afterwards=", ".join(steps))

    def launch(self, a: int, w: int, c: int, addend: int, workspace: int, stream: int, *, algorithm: int = 0) -> None:
        """Same as for `LibraryGemm`; `stream` is the current one.

        Raises:
            WorkerError: the library refuses the algorithm.
        """
        wide_a, wide_c = int(self._a.data.ptr), int(self._c.data.ptr)
        _convert(self._widen, a, wide_a, self._a.size)
        adds = self._gemm.can_add and addend != 0
        if adds:
            _convert(self._widen, addend, wide_c, self._c.size)
        self._gemm.launch(
            *(wide_a, int(self._weights[w].data.ptr), wide_c, wide_c if adds else 0, workspace, stream),
            algorithm=algorithm,
        )
        _convert(self._narrow, wide_c, c, self._c.size)


def _convert(kernel: Any, source: int, target: int, count: int) -> None:
    ctas = min(_MAX_CTAS, -(-count // _THREADS))
    kernel((ctas,), (_THREADS,), (cupy.uint64(source), cupy.uint64(target), cupy.uint64(count)))


def product_of(
    lt: CublasLt, op: TileOp, dtype: Dtype, slots: Sequence[OpBuffers], tools: Any, scales: LaidScales
) -> LibraryGemm | WidenedGemm | ConvertedGemm:
    """The library's product of an op, given its operands in each slot.

    Raises:
        WorkerError: the library has no algorithm.
    """
    weights, row = {one.w for one in slots}, slots[0].bias
    if is_block_scaled(op):
        return BlockGemm(lt, op, dtype, slots, tools, scales)
    if op.weights:
        return ConvertedGemm(lt, op, dtype, weights, row, tools)
    if dtype.row.library is None:
        return WidenedGemm(lt, op, dtype, weights, row, tools)
    out_type = None if dtype.sums is dtype else dtype.sums.row.library_type
    return LibraryGemm(lt, op, dtype.row.library_type, row, out_type)
