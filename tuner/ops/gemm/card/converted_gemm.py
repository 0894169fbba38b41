"""Products with weights that are stored in fewer bits: cuBLASLt multiplies the converted elements.

cuBLASLt has no product that converts weights. Its users would store converted weights, so the conversion is not timed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.tile_op import TileOp
from tuner.core.trial.reports.library_recipe import LibraryCall
from tuner.ops.gemm.card.cublaslt import CublasLt, LibraryGemm


class ConvertedGemm:
    """One product with converted weights."""

    def __init__(self, lt: CublasLt, op: TileOp, dtype: Dtype, weights: set[int], row: int) -> None:
        """Takes the addresses of each slot's weights, and of what is added to each row, 0 if nothing is.

        Raises:
            WorkerError: the library has no algorithm.
        """
        self._weights = {address: _elements(address, op, dtype) for address in weights}
        self._gemm = LibraryGemm(lt, op, dtype.row.library_type, row)

    @property
    def num_algorithms(self) -> int:
        """Same as for `LibraryGemm`."""
        return self._gemm.num_algorithms

    def recipe(self, op: TileOp, *, algorithm: int) -> LibraryCall:
        """Same as for `LibraryGemm`, plus the format of the weights."""
        call = self._gemm.recipe(op, algorithm=algorithm)
        steps = [f"weights are {op.weights}, converted beforehand", *filter(None, [call.afterwards])]
        return replace(call, afterwards=", ".join(steps))

    def launch(self, a: int, w: int, c: int, addend: int, workspace: int, stream: int, *, algorithm: int = 0) -> None:
        """Same as for `LibraryGemm`.

        Raises:
            WorkerError: the library refuses the algorithm.
        """
        elements = int(self._weights[w].data.ptr)
        self._gemm.launch(a, elements, c, addend, workspace, stream, algorithm=algorithm)


def _elements(address: int, op: TileOp, dtype: Dtype) -> Any:
    """The converted weights [rows of W, k], as bits."""
    assert op.weights, op.name
    row, shape = op.weights.row, (op.weight_rows, op.weights.row.row_bytes(op.k))
    memory = cupy.cuda.UnownedMemory(address, shape[0] * shape[1], None)
    held = cupy.ndarray(shape, cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return dtype.row.to_bits(cupy, row.known(cupy, held, op.k, dtype.row).astype(cupy.float32))
