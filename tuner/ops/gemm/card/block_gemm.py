"""Products by cuBLASLt of 8-bit operands whose scales change along k.

The library reads scales of inputs as [k / 128, rows], rows in multiples of 4, so a user would store them so. Inputs of
timed launches are laid out beforehand, other ones, of checks, in each run. If the number of rows is no multiple of 4,
A and C are copied from and to memory with more rows.

Source: cuBLAS library documentation, "Using the cuBLASLt API", cublasLtMatmulMatrixScale_t (12.9 and newer).
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int8, c_int32, c_void_p
from dataclasses import replace
from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.scales.block_scale import BlockScale
from tuner.core.problem.epilogue.scales.group_scale import BLOCK, GroupOperand, GroupScale
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.trial.reports.library_recipe import LibraryCall
from tuner.ops.gemm.card.cublaslt import DESC_FAST_ACCUM, CublasLt, LibraryGemm
from tuner.workers.gpu.tensors.outputs import bits_type
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.tools import kernel_of

#: Attributes of a product: addresses and modes of the scales of its first and second operand, W and A; and these modes:
#: 128 x 128, and 1 x 128. Source: cublasLtMatmulDescAttributes_t.
_W_SCALE, _A_SCALE, _W_MODE, _A_MODE = 17, 18, 31, 32
_OF_BLOCKS, _OF_GROUPS = 5, 4
#: The multiple of which rows of scales are.
_ROOM = 4
_THREADS, _MAX_CTAS = 256, 4096


def _room(count: int) -> int:
    return -(-count // _ROOM) * _ROOM


def is_block_scaled(op: TileOp) -> bool:
    """Whether the op's operands have scales that change along k."""
    return any(isinstance(part, BlockScale) for part in op.epilogue)


class LaidScales:
    """Scales of ops' outputs, or of operands beside them, in the library's layout."""

    def __init__(self, workload: Workload) -> None:
        parts = ((op, part) for op in workload.tile_ops for part in op.epilogue)
        #: [n / 128, rows] by scaled tensor, written by the kernel behind its op's product.
        self.made = {
            part.values_of(op.name) if isinstance(part, GroupOperand) else op.name: cupy.ones(
                (op.n // BLOCK, _room(op.m)), cupy.float32
            )
            for op, part in parts
            if isinstance(part, GroupOperand | GroupScale)
        }


class BlockGemm(LibraryGemm):
    """One product."""

    def __init__(
        self, lt: CublasLt, op: TileOp, dtype: Dtype, slots: Sequence[OpBuffers], tools: Any, scales: LaidScales
    ) -> None:
        """Takes the operands of each slot; `tools` has the kernel that lays out scales.

        Raises:
            WorkerError: the library has no algorithm.
        """
        part = next(part for part in op.epilogue if isinstance(part, BlockScale))
        self._op, self._made = op, scales.made.get(op.source)
        #: The names of the scales of inputs and of weights, which are 1 if there are none.
        self._inputs, self._weights = (f"{part.name}_{own}" for own in ("inputs", "weights"))
        self._lay = tools.get_function(kernel_of("tuner_laid_scales", dtype))
        blocks = op.k // BLOCK
        rows = -(-op.weight_rows // BLOCK)
        #: The scales of weights, whose rows have room for a multiple of 4, by their address.
        self._of_weights = {
            one: _padded(_view(one, (rows, blocks), cupy.float32), rows, _room(blocks))
            if one
            else cupy.ones((rows, _room(blocks)), cupy.float32)
            for one in {one.parts.get(self._weights, 0) for one in slots}
        }
        self._scratch = cupy.ones((blocks, _room(op.m)), cupy.float32)
        #: The scales of inputs of timed launches, by their address.
        self._of_inputs: dict[int, Any] = {}
        if self._made is None:
            for one in {one.parts[self._inputs] for one in slots}:
                self._of_inputs[one] = _padded(_view(one, (op.m, blocks), cupy.float32).T, blocks, _room(op.m))
        out = dtype.sums
        self._a_rows = cupy.zeros((_room(op.m), op.k), bits_type(dtype)) if op.m % _ROOM else None
        self._c_rows = cupy.zeros((_room(op.m), op.weight_rows), bits_type(out)) if op.m % _ROOM else None
        self._first = slots[0]
        super().__init__(lt, op, dtype.row.library_type, 0, out.row.library_type)

    def _prepared(self, op: TileOp) -> int:
        self._set(DESC_FAST_ACCUM, c_int8(0))
        self._set(_W_MODE, c_int32(_OF_BLOCKS))
        self._set(_A_MODE, c_int32(_OF_GROUPS))
        self.scale(self._first)
        return _room(op.m)

    def scale(self, buffer: OpBuffers) -> None:
        """Uses the scales of a launch; the current stream is that of the launch."""
        of_inputs = buffer.parts[self._inputs]
        laid = self._made if self._made is not None else self._of_inputs.get(of_inputs)
        if laid is None:
            laid, (groups, room) = self._scratch, self._scratch.shape
            args = (cupy.uint64(of_inputs), cupy.uint64(laid.data.ptr), *map(cupy.uint32, (room, self._op.m, groups)))
            self._lay((min(-(-self._op.m * groups // _THREADS), _MAX_CTAS),), (_THREADS,), args)
        self._set(_W_SCALE, c_void_p(int(self._of_weights[buffer.parts.get(self._weights, 0)].data.ptr)))
        self._set(_A_SCALE, c_void_p(int(laid.data.ptr)))

    def recipe(self, op: TileOp, *, algorithm: int) -> LibraryCall:
        """Same as for `LibraryGemm`, plus the modes of the scales."""
        call = super().recipe(op, algorithm=algorithm)
        steps = ["scales of 128 x 128 weights and 1 x 128 inputs", *filter(None, [call.afterwards])]
        return replace(call, afterwards=", ".join(steps))

    def launch(self, a: int, w: int, c: int, residual: int, workspace: int, stream: int, *, algorithm: int = 0) -> None:
        """Same as for `LibraryGemm`; `stream` is the current one.

        Raises:
            WorkerError: the library refuses the algorithm.
        """
        if self._a_rows is None or self._c_rows is None:
            super().launch(a, w, c, 0, workspace, stream, algorithm=algorithm)
            return
        op, copied = self._op, cupy.cuda.runtime.memcpyDeviceToDevice
        a_rows, c_rows = int(self._a_rows.data.ptr), int(self._c_rows.data.ptr)
        copy = cupy.cuda.runtime.memcpyAsync
        copy(a_rows, a, op.m * op.k * self._a_rows.itemsize, copied, stream)
        super().launch(a_rows, w, c_rows, 0, workspace, stream, algorithm=algorithm)
        copy(c, c_rows, op.m * op.weight_rows * self._c_rows.itemsize, copied, stream)


def _view(address: int, shape: tuple[int, int], kind: Any) -> Any:
    memory = cupy.cuda.UnownedMemory(address, shape[0] * shape[1] * cupy.dtype(kind).itemsize, None)
    return cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0))


def _padded(scales: Any, rows: int, columns: int) -> Any:
    """A copy with more columns."""
    laid = cupy.ones((rows, columns), cupy.float32)
    laid[:, : scales.shape[1]] = scales
    return laid
