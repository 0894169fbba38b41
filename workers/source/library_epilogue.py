"""How the vendor library computes an op: what its GEMM's epilogue supports, and what kernels after it must do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, takewhile

from tuner.core.problem.epilogue import Part, Product

Parts = tuple[Part, ...]


def split_epilogue(op: Product) -> tuple[Parts, Parts]:
    """The parts that the library's GEMM applies, and those that are left for kernels after it, if any. Both are in the
    order in which they are applied; parts that the library applies before its product are in neither."""
    behind = [part for part in op.parts if not part.is_in_front]
    fused = tuple(takewhile(lambda part: part.is_in_library(op), behind))
    return fused, tuple(behind[len(fused) :])


def kernels_of(parts: Parts) -> list[tuple[str, Parts]]:
    """The kernels of the measuring protocol that apply these parts, one after the other, with their parts."""
    return [(kernel, tuple(group)) for kernel, group in groupby(parts, lambda part: part.library_kernel)]


def describe(op: Product, parts: Sequence[Part]) -> str:
    """The steps of these parts as text, in order."""
    return ", ".join(part.step(op) for part in parts)
