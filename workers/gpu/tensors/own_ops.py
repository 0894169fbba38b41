"""Tile ops that no library computes: what is measured beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.tile_op import TileOp
from tuner.errors import WorkerError


class CardOfTileOp(Protocol):
    """The folder ``card``, or the file, of a kind of tile op. It may import what the card's machine has."""

    def kernel_of(self, op: Any, dtype: Dtype) -> Callable[[int, int, int], None]:
        """What enqueues a kernel to measure beside on CuPy's current stream, by the addresses of A, W and C."""


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
