"""A request for a pack, and the pack that was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Workload
from tuner.packs.shapes import Shape, shape_kinds, shape_of, sizes_of


@dataclass(frozen=True, kw_only=True)
class PackOrder:
    """A request for a pack."""

    #: Shapes, and the tuned rows of each.
    shapes: tuple[tuple[Shape, tuple[int, ...]], ...]
    target_id: str
    #: L2 of the objective.
    l2: CacheState
    #: The minimum speed-up over the library for which a kernel is used.
    min_gain: float
    #: Attentions, layers and chains with their sizes.
    workloads: tuple[Workload, ...] = ()
    #: Whether a row's bits may depend only on its own values; `min_gain` then has no effect.
    batch_invariant: bool = False
    #: The card's power state of the objective; None: what each workload's rows suggest.
    regime: Regime | None = None

    @property
    def rows(self) -> dict[str, list[int]]:
        """The tuned rows, by the names of shapes whose ladders are searched by rows."""
        found = {shape.name: sorted(set(rows)) for shape, rows in self.shapes}
        for workload in (workload.to_json() for workload in self.workloads):
            if (shape := shape_of(workload)).by_rows:
                found[shape.name] = sorted({*found.get(shape.name, ()), sizes_of(workload)[0]})
        return found

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        shapes = [{**shape.to_json(), "rows": list(rows)} for shape, rows in self.shapes]
        order: dict[str, Any] = {"shapes": shapes, "target": self.target_id, "l2": str(self.l2)}
        order["min_gain"] = self.min_gain
        order |= {} if self.regime is None else {"regime": str(self.regime)}
        asked = [workload.to_json() for workload in self.workloads]
        for section in shape_kinds():
            of_it = [one for one in asked if shape_of(one).section == section]
            order |= {section: of_it} if of_it else {}
        return order | ({"batch_invariant": True} if self.batch_invariant else {})


@dataclass(frozen=True, kw_only=True)
class MadePack:
    """A pack that the service stores."""

    #: sha256 of the file, hexadecimal.
    digest: str
    size_bytes: int
    #: The public key of its signature.
    key: str
    #: Whether its figures are simulated, and its kernels never ran on a card.
    simulated: bool
