"""cuBLASLt as the library of products that a workload is compared with."""

from __future__ import annotations

from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.ops.gemm.card.batched_gemm import BatchedGemm
from tuner.ops.gemm.card.cublaslt import WORKSPACE_BYTES, CublasLt
from tuner.ops.gemm.card.library import LibraryRunner
from tuner.workers.gpu.library.vendor import BatchedShape
from tuner.workers.gpu.tensors.data import ProblemData


class CublasLtVendor:
    """A `Vendor` with its own handle."""

    workspace_bytes = WORKSPACE_BYTES

    def __init__(self) -> None:
        """Loads the library.

        Raises:
            WorkerError: it is not installed, or does not support the card.
        """
        self._lt = CublasLt()
        self.version = self._lt.version

    def tile_library(self, data: ProblemData, tools: Any) -> LibraryRunner:
        """The library's products, and the kernels that other kinds of tile ops are compared with."""
        return LibraryRunner(self._lt, data, tools)

    def batched(self, dtype: Dtype, shape: BatchedShape) -> BatchedGemm:
        """Strided batched products."""
        return BatchedGemm(self._lt, dtype, shape)
