"""A public library's side of a row: its inputs and its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from tuner.ops.gemm.card.cublaslt import CublasLt

from . import quantised
from .quantised import FP8, Weights
from .rows import Row

#: The number of rows of group scales must be a multiple of this for TMA.
_ROOM = 4


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A pair by one library."""

    #: For each set of weights, a function that enqueues the whole pair.
    launches: Sequence[Callable[[], object]]
    #: The result of the first set: [m, d].
    result: Callable[[], torch.Tensor]
    #: How the peer's kernels were chosen.
    chosen: str = ""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a row: the sets of weights that launches use in turn, and x [m, d], all in bf16."""

    row: Row
    x: torch.Tensor
    weights: Sequence[Weights]
    lt: CublasLt

    @property
    def m(self) -> int:
        """Rows of x."""
        return self.row.m

    def empty(self, columns: int, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """An array [m, columns] of NaN, if its type has NaN."""
        return torch.full((self.m, columns), float("nan"), device="cuda", dtype=torch.float32).to(kind)

    @cached_property
    def sums(self) -> torch.Tensor:
        """Sums of gate and up projection, [m, 2 hidden]."""
        return self.empty(2 * self.row.pair.hidden)

    @cached_property
    def hidden(self) -> torch.Tensor:
        """H in fp8, [m, hidden]."""
        return torch.zeros(self.m, self.row.pair.hidden, device="cuda", dtype=FP8)

    @cached_property
    def hidden_scale(self) -> torch.Tensor:
        """The static scale of H, [1]."""
        return quantised.hidden_scale(self.x, self.weights[0])

    def room(self) -> int:
        """Rows of group scales."""
        return -(-self.m // _ROOM) * _ROOM


#: The constructor of each peer, by its name.
Makers = dict[str, Callable[[], Peer]]
