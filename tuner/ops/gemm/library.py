"""Finds the library that products on a card are compared with (`tuner/workers/gpu/library/vendor.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.core.trial.reports.torch_time import TorchCalls
    from tuner.ops.gemm.card.vendor import CublasLtVendor
    from tuner.workers.gpu.library.torch_graph import TorchGraph
    from tuner.workers.gpu.tensors.data import ProblemData


def open_library() -> CublasLtVendor:
    """Opens cuBLASLt.

    Raises:
        WorkerError: the library is not installed, or does not support the card.
    """
    from tuner.ops.gemm.card.vendor import CublasLtVendor

    return CublasLtVendor()


def preload() -> None:
    """Loads the library's file without a card; the first time takes some tenths of a second.

    Raises:
        WorkerError: the library is not installed.
    """
    from tuner.ops.gemm.card.cublaslt import load_library

    load_library()


def torch_chain(data: ProblemData, calls: TorchCalls) -> TorchGraph:
    """The products by PyTorch.

    Raises:
        WorkerError: the library is not installed, or has no call for an op.
    """
    from tuner.ops.gemm.card.torch_chain import torch_chain as made

    return made(data, calls)
