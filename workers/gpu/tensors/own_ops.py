"""Tile ops that the library of products does not compute, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.tile_op import TileOp
from tuner.errors import WorkerError

from ...source.launch_args import OpBuffers


class Call(Protocol):
    """A library's call, as the runner of a workload's tile ops makes it."""

    #: Number of algorithms, the best guess first.
    @property
    def num_algorithms(self) -> int: ...

    def recipe(self, op: Any, *, algorithm: int) -> Any:
        """How other programs can make this call."""

    def launch(self, a: int, w: int, c: int, added: int, workspace: int, stream: int, *, algorithm: int) -> None:
        """Enqueues the call on addresses on the device; `added` is that of the tensor that it adds before its
        activation, or 0."""


def call_of(op: TileOp, dtype: Dtype, first: OpBuffers) -> Call | OwnCall:
    """The call for an op that is not a plain product: ``call_of`` in the folder ``card`` of its kind, which applies the
    library's part of its epilogue (`split_epilogue`), with the buffers of the `first` slot that all slots share; or the
    kernel of `OwnCall`.

    Raises:
        WorkerError: the kind has neither, or its library has no algorithm.
    """
    card = part_of(op.KIND, "card")
    if card is not None and hasattr(card, "call_of"):
        made: Call = card.call_of(op, dtype, first)
        return made
    return OwnCall(op, dtype)


class CardOfTileOp(Protocol):
    """The folder ``card``, or the file, of a kind of tile op. It may import packages that are only on the card's
    machine.
    """

    def kernel_of(self, op: Any, dtype: Dtype) -> Callable[..., None]:
        """A function that enqueues a kernel to compare with on CuPy's current stream, given the addresses of A, W
        and C, and then of the op's `others`."""


class OwnCall:
    """The kind's own kernel, from the file ``card`` of its kind, as a library's call."""

    #: It has one algorithm.
    num_algorithms = 1

    def __init__(self, op: TileOp, dtype: Dtype) -> None:
        """Compiles it.

        Raises:
            WorkerError: the kind has none.
        """
        if (part := part_of(op.KIND, "card")) is None:
            raise WorkerError(f"{op.name}: no library supports a {op.KIND}, and its kind has no kernel to compare with")
        self._call: Callable[..., None] = part.kernel_of(op, dtype)

    def recipe(self, op: TileOp, *, algorithm: int) -> None:
        """The library has no such call."""

    def enqueue(self, given: OpBuffers) -> None:
        """Enqueues it on the current stream."""
        self._call(given.a, given.w, given.c, *given.parts.values())
