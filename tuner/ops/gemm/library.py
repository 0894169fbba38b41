"""The library of products that a card measures beside (`tuner/workers/gpu/library/vendor.py`), found without a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.ops.gemm.card.vendor import CublasLtVendor


def open_library() -> CublasLtVendor:
    """cuBLASLt, opened.

    Raises:
        WorkerError: it is not installed, or refuses the card.
    """
    from tuner.ops.gemm.card.vendor import CublasLtVendor

    return CublasLtVendor()


def preload() -> None:
    """Its file, which takes some tenths of a second once.

    Raises:
        WorkerError: it is not installed.
    """
    from tuner.workers.gpu.library.cublaslt import load_library

    load_library()
