"""The vendor's library of products: the calls that a workload's tile ops and the libraries of other kinds need.

A kind that provides it does so in its file ``library``: ``open_library()`` makes a `Vendor`, ``preload()`` loads what
takes a long time and needs no card. A kind whose tile ops the library does not support has a kernel to compare with
(`OwnCall`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import op_kinds, part_of
from tuner.errors import WorkerError

from ...source.launch_args import OpBuffers
from ..tensors.data import ProblemData
from .baseline import Library


@dataclass(frozen=True, kw_only=True)
class BatchedShape:
    """D[m, n] = X Y for each matrix of a batch, with X [m, k], or [k, m] and transposed; all column-major and
    packed."""

    m: int
    n: int
    k: int
    is_transposed: bool
    #: Number of products, and elements from one X to the next.
    batch: int
    x_stride: int
    #: Whether D is fp32; else it has the operands' type.
    is_wide: bool


class BatchedProduct(Protocol):
    """A strided batch of products by the library."""

    @property
    def num_algorithms(self) -> int:
        """Number of algorithms, the best guess first."""

    def launch(self, x: int, y: int, d: int, workspace: int, stream: int, *, algorithm: int) -> None:
        """Enqueues all products; addresses on the device, `workspace` of `Vendor.workspace_bytes`."""


class TileLibrary(Library, Protocol):
    """All tile ops of a workload computed by the library."""

    def enqueue_some(self, ops: tuple[OpBuffers, ...], stream: int, begin: int, end: int) -> None:
        """Enqueues only these ops of a run, in order; a run begins with the first one."""


class Vendor(Protocol):
    """The library, opened once per process."""

    #: Its version, as it reports itself.
    version: int
    #: Bytes of the workspace that a product may use.
    workspace_bytes: int

    def tile_library(self, data: ProblemData, tools: Any) -> TileLibrary:
        """The library's side of the tile ops of a problem; `tools` is the module of `tools_source`.

        Raises:
            WorkerError: the library has no algorithm, or an op does not read the tensor whose norm it uses.
        """

    def batched(self, dtype: Dtype, shape: BatchedShape) -> BatchedProduct:
        """Batched products for the library of another kind of op.

        Raises:
            WorkerError: the library has no algorithm.
        """


def open_vendor() -> Vendor:
    """The library of the first kind that has one.

    Raises:
        WorkerError: no kind has one; or it is not installed, or does not support the card.
    """
    for part in _libraries():
        vendor: Vendor = part.open_library()
        return vendor
    raise WorkerError("no known kind of op has a vendor's library to compare with")


def preload() -> None:
    """Loads what takes a long time to load, without a context.

    Raises:
        WorkerError: it is not installed.
    """
    for part in _libraries():
        part.preload()


def _libraries() -> Iterator[ModuleType]:
    found = (part_of(kind, "library") for kind in op_kinds())
    return (part for part in found if part is not None)
