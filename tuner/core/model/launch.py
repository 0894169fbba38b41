"""What a simulation of a launch needs besides its plan: the costs of tiles, and properties of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.core.model.rates import EngineRates
from tuner.core.model.task_costs import OpCosts


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Costs and kernel of one launch. Ops are identified by their index, as in the plan."""

    #: The costs of the tiles of each op.
    costs: Mapping[int, OpCosts]
    #: Eviction classes (see `l2`): of all weights, and of each op's inputs and outputs.
    weight_class: int
    input_classes: Mapping[int, int]
    output_classes: Mapping[int, int]
    #: (panel, bytes) written by earlier launches, one list for each op that reads them.
    written_before: tuple[tuple[tuple[int, int], ...], ...]
    #: By op: the share of its tasks whose weights are requested together with a neighbour's; empty if there are none.
    merged: Mapping[int, float] = field(default_factory=dict)
    #: Same as `merged`, for the inputs of ops that gather them.
    merged_inputs: Mapping[int, float] = field(default_factory=dict)
    #: CTAs that compute a task together.
    cluster_size: int
    #: CTAs per SM; with clusters, clusters per as many SMs as a cluster has CTAs.
    occupancy: int
    #: Stages of a CTA's ring, and teams of warps that alternate between its tasks.
    num_stages: int
    num_teams: int
    #: Whether a CTA starts its next task while it still computes the current one.
    runs_ahead: bool
    #: Whether each part of a tile adds up a share of it; otherwise the last part adds up all of it.
    scatters_sums: bool = False
    #: Threads that poll signals, one each.
    num_pollers: int
    #: Rates of the engine on this GPU.
    engine: EngineRates
