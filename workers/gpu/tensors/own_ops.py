"""Tile ops whose kind has what a task does, on a card: what one must be, and what is measured beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.sums import Tensors
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.tile_op import TileOp
from tuner.errors import WorkerError

from .reference import Reference, reference


def reference_of(op: Any, tensors: Tensors, dtype: Dtype, *, is_normed: bool) -> Reference:
    """Of a tile op of any kind, as `reference`.

    Raises:
        WorkerError: its kind has none.
    """
    if not op.IS_PRODUCT:
        return _own_reference(op, tensors, dtype)
    return reference(cupy, op, tensors, dtype, is_normed=is_normed)


def _own_reference(op: TileOp, tensors: Tensors, dtype: Dtype) -> Reference:
    """The op's output, by the file ``reference`` of its kind, and its tolerance: what fp32 sums may be off by, where an
    earlier op's output was rounded on its way, and two roundings of the output.

    Raises:
        WorkerError: the kind has no reference.
    """
    if (part := part_of(op.KIND, "reference")) is None:
        raise WorkerError(f"{op.name}: nothing says here what a {op.KIND} must be")
    roundoff, step = dtype.row.roundoff, dtype.row.smallest_step
    source, w = tensors[op.source], tensors[f"{op.name}.weight"].values
    off = 0.0 if source.tolerance is None else roundoff
    values, error = part.reference(cupy, op, source.values, w, roundoff=off)
    tolerance = error + 2 * roundoff * cupy.abs(values) + 2 * step
    return Reference(
        values=cupy.ascontiguousarray(values), tolerance=cupy.ascontiguousarray(tolerance.astype(cupy.float32))
    )


class OwnCall:
    """A kernel of the kind's own, from the file ``card`` of its kind, as a library's call."""

    #: It offers one.
    num_algorithms = 1

    def __init__(self, op: TileOp, dtype: Dtype) -> None:
        """Compiles it.

        Raises:
            WorkerError: the kind has none.
        """
        if (part := part_of(op.KIND, "card")) is None:
            raise WorkerError(f"{op.name}: no library makes a {op.KIND}, and its kind has no kernel to measure beside")
        self._call: Callable[[int, int, int], None] = part.kernel_of(op, dtype)

    def recipe(self, op: TileOp, *, algorithm: int) -> None:
        """The library has no such call."""

    def launch(self, a: int, w: int, c: int, *_: Any, **__: Any) -> None:
        """Enqueues it on the current stream, by the addresses of A, W and the output."""
        self._call(a, w, c)
