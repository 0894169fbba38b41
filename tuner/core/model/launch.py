"""What a simulation knows of one launch beside its plan: what the ops' tiles cost, and how their kernel works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.core.model.rates import EngineRates
from tuner.core.model.task_costs import OpCosts


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Costs and kernel of one launch. Ops are told apart by their index, as in the plan."""

    #: What the tiles of each op cost.
    costs: Mapping[int, OpCosts]
    #: Classes of eviction, of `l2`: of all weights, and of each op's inputs and outputs.
    weight_class: int
    input_classes: Mapping[int, int]
    output_classes: Mapping[int, int]
    #: (panel, bytes) that earlier launches wrote, one list for each op that reads them.
    written_before: tuple[tuple[tuple[int, int], ...], ...]
    #: By op: the share of its tasks whose weights are asked for together with a neighbour's; else none.
    merged: Mapping[int, float] = field(default_factory=dict)
    #: CTAs that compute a task together.
    cluster_size: int
    #: CTAs, or clusters, that an SM holds, or that many SMs do.
    occupancy: int
    #: Stages of a CTA's ring, and teams of warps that take turns with its tasks.
    num_stages: int
    num_teams: int
    #: Whether a CTA turns to its next task while it computes one.
    runs_ahead: bool
    #: Whether each part of a tile adds up a share of it, or the last one all.
    scatters_sums: bool = False
    #: Threads that look at signals, one each.
    num_pollers: int
    #: Rates of the engine on this GPU.
    engine: EngineRates
