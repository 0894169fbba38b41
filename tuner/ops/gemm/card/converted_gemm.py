"""Products with weights that are stored in fewer bits: cuBLASLt multiplies the converted elements.

cuBLASLt has no product that converts weights. Its users would store converted weights, so the conversion is not timed.
It has no product of 8-bit inputs and 16-bit weights either; each run widens its inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.tile_op import TileOp
from tuner.core.trial.reports.library_recipe import LibraryCall
from tuner.ops.gemm.card.cublaslt import CublasLt, LibraryGemm
from tuner.workers.source.tools import kernel_of

#: Elements of a step of a thread that widens inputs, threads of its CTA, and the maximum CTAs.
_WIDTH, _THREADS, _MAX_CTAS = 8, 256, 4096


class ConvertedGemm:
    """One product with converted weights, in the type of the library's sums."""

    def __init__(self, lt: CublasLt, op: TileOp, dtype: Dtype, weights: set[int], row: int, tools: Any) -> None:
        """Takes the addresses of each slot's weights, and of what is added to each row, 0 if nothing is; `tools` has
        the kernel that widens inputs.

        Raises:
            WorkerError: the library has no algorithm.
        """
        self._weights = {address: _elements(address, op, dtype) for address in weights}
        self._gemm = LibraryGemm(lt, op, dtype.sums.row.library_type, row)
        self._widen, self._wide = None, None
        if dtype.sums is not dtype:
            self._widen = tools.get_function(kernel_of("tuner_widen_sums", dtype))
            self._wide = cupy.empty((op.m, op.k), cupy.uint16)

    @property
    def num_algorithms(self) -> int:
        """Same as for `LibraryGemm`."""
        return self._gemm.num_algorithms

    def recipe(self, op: TileOp, *, algorithm: int) -> LibraryCall:
        """Same as for `LibraryGemm`, plus the format of the weights."""
        call = self._gemm.recipe(op, algorithm=algorithm)
        inputs = None if self._wide is None else "inputs are widened by a kernel"
        steps = [f"weights are {op.weights}, converted beforehand", *filter(None, [inputs, call.afterwards])]
        return replace(call, afterwards=", ".join(steps))

    def launch(self, a: int, w: int, c: int, addend: int, workspace: int, stream: int, *, algorithm: int = 0) -> None:
        """Same as for `LibraryGemm`.

        Raises:
            WorkerError: the library refuses the algorithm.
        """
        elements = int(self._weights[w].data.ptr)
        if self._widen is not None and self._wide is not None:
            wide, count = int(self._wide.data.ptr), self._wide.size
            ctas = min(_MAX_CTAS, -(-count // (_WIDTH * _THREADS)))
            self._widen((ctas,), (_THREADS,), (cupy.uint64(a), cupy.uint64(wide), cupy.uint64(count)))
            a = wide
        self._gemm.launch(a, elements, c, addend, workspace, stream, algorithm=algorithm)


def _elements(address: int, op: TileOp, dtype: Dtype) -> Any:
    """The converted weights [rows of W, k], as bits."""
    assert op.weights, op.name
    row, shape = op.weights.row, (op.weight_rows, op.weights.row.row_bytes(op.k))
    memory = cupy.cuda.UnownedMemory(address, shape[0] * shape[1], None)
    held = cupy.ndarray(shape, cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return dtype.sums.row.to_bits(cupy, row.known(cupy, held, op.k, dtype.row).astype(cupy.float32))
