"""Which pack is asked for, and what was made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tuner.core.problem.objective import CacheState
from tuner.core.problem.workload import Workload

from .contents import Shape


@dataclass(frozen=True, kw_only=True)
class PackOrder:
    """Which pack is asked for."""

    #: Shapes, and for each the rows that were tuned.
    shapes: tuple[tuple[Shape, tuple[int, ...]], ...]
    target_id: str
    #: Of the objective; the regime is that of the rows.
    l2: CacheState
    #: The least speed-up over the library for which a kernel is kept.
    min_gain: float
    #: Attentions with their sequences and longest contexts, alone or with a product behind them.
    attentions: tuple[Workload, ...] = ()
    #: Layers with their sequences and longest contexts: attentions with other products around them.
    layers: tuple[Workload, ...] = ()
    #: Whether a row's bits may depend on its own values alone; `min_gain` then keeps nothing back.
    batch_invariant: bool = False

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        shapes = [{**asdict(shape), "rows": list(rows)} for shape, rows in self.shapes]
        order = {"shapes": shapes, "target": self.target_id, "l2": str(self.l2), "min_gain": self.min_gain}
        order |= {"attentions": [workload.to_json() for workload in self.attentions]} if self.attentions else {}
        order |= {"layers": [workload.to_json() for workload in self.layers]} if self.layers else {}
        return order | ({"batch_invariant": True} if self.batch_invariant else {})


@dataclass(frozen=True, kw_only=True)
class MadePack:
    """A pack that the service keeps."""

    #: sha256 of the file, hexadecimal.
    digest: str
    size_bytes: int
    #: The public key whose private half signed it.
    key: str
    #: Whether its figures are a model's, and no card ever ran its kernels.
    simulated: bool
