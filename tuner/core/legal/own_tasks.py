"""Rules of tile ops whose kind has what a task does: who runs it, what a CTA takes for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.resources import Resources
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.errors import IllegalSchedule


class TileRules(Protocol):
    """The file ``rules`` of such a kind."""

    #: The engines whose loop over tasks runs it.
    ENGINES: Sequence[str]

    def refuse(self, workload: Workload, gpu: Gpu, op: Any, schedule: Any) -> str | None:
        """Why what only the kind chooses may not be so."""

    def resources_of(self, op: Any, tile: Tile, chosen: Any, dtype: Dtype, num_threads: int) -> Resources:
        """What a CTA of so many threads takes for a task; of `chosen`, what only the kind chooses, None is the
        plainest."""


def own_rules(op: TileOp) -> TileRules:
    """The rules of an op's kind.

    Raises:
        IllegalSchedule: the kind has none.
    """
    if (rules := part_of(op.KIND, "rules")) is None:
        raise IllegalSchedule(f"{op.KIND}: nothing is known here of what its tasks take")
    return cast(TileRules, rules)


def own_tasks_problem(workload: Workload, engine: Engine) -> str | None:
    """Why the engine's loop does not run the tasks of an op."""
    for op in workload.tile_ops:
        if not op.is_plain_product and engine not in (engines := own_rules(op).ENGINES):
            return f"the {engine} engine runs no task of {op.name}, a {op.KIND}: use {' or '.join(engines)}"
    return None


def own_resources(workload: Workload, tiling: Tiling) -> list[Resources]:
    """What a CTA takes for tasks of such ops, op by op."""
    found = []
    for index in workload.own_tile_ops:
        op, tile, chosen = workload.tile_ops[index], tiling.tiles[index], tiling.of_kind(index)
        found.append(own_rules(op).resources_of(op, tile, chosen, workload.dtype, tiling.num_threads))
    return found
