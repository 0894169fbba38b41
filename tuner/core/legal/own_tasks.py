"""Rules for tile ops whose kind defines the task: which engines run it, and the resources of a CTA for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.resources import Resources
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tile, Tiling, Warpgroups
from tuner.errors import IllegalSchedule

#: Alignment of the shared memory for a kind's own tasks, and the unit of its size: `SharedLayout::kOwn`.
OWN_TASK_ALIGNMENT_BYTES = 128


class TileRules(Protocol):
    """The module ``rules`` of a kind that defines the task."""

    #: The engines whose task loop runs it.
    ENGINES: Sequence[str]

    def refuse(self, workload: Workload, gpu: Gpu, op: Any, schedule: Any) -> str | None:
        """Why a choice that only the kind knows is invalid."""

    def resources_of(self, op: Any, tile: Tile, chosen: Any, dtype: Dtype, num_threads: int) -> Resources:
        """Resources that a CTA of `num_threads` threads needs for a task. `chosen` holds the kind's own choices; None
        means the defaults."""


def own_rules(op: TileOp) -> TileRules:
    """The rules of an op's kind.

    Raises:
        IllegalSchedule: the kind has no rules.
    """
    if (rules := part_of(op.KIND, "rules")) is None:
        raise IllegalSchedule(f"{op.KIND}: this program does not know what resources its tasks take")
    return cast(TileRules, rules)


def own_tasks_problem(workload: Workload, engine: Engine) -> str | None:
    """Why the engine's loop cannot run the tasks of an op."""
    for op in workload.tile_ops:
        if not op.is_plain_product and engine not in (engines := own_rules(op).ENGINES):
            return f"the {engine} engine cannot run tasks of {op.name}, a {op.KIND}: use {' or '.join(engines)}"
    if engine is Engine.WGMMA and len(workload.own_tile_ops) == len(workload.tile_ops) > 0:
        return "no op is a product, so the wgmma engine has nothing to multiply: use mma or simt"
    return None


def own_task_bytes(workload: Workload, tiling: Tiling) -> int:
    """Shared memory for tasks of ops whose kind defines the task, one task at a time, bytes."""
    return max((one.smem_bytes for one in own_resources(workload, tiling)), default=0)


def products(workload: Workload, tiling: Tiling) -> list[tuple[int, TileOp, Tile]]:
    """The ops that the engine multiplies: the index of each, the op, and a CTA's tile of it."""
    ops = zip(workload.tile_ops, tiling.cta_tiles, strict=True)
    return [(index, op, tile) for index, (op, tile) in enumerate(ops) if op.IS_PRODUCT]


def with_own_tasks(workload: Workload, tiling: Tiling, engine_bytes: int) -> int:
    """Shared memory with separate space for each team after the engine's, if there are ops whose kind defines the
    task: while such a task runs, the engine's rings hold data for later tasks.
    """
    if not workload.own_tile_ops:
        return engine_bytes
    num_teams = 2 if tiling.warpgroups is Warpgroups.PING_PONG else 1
    aligned = -(-engine_bytes // OWN_TASK_ALIGNMENT_BYTES) * OWN_TASK_ALIGNMENT_BYTES
    return aligned + num_teams * own_task_bytes(workload, tiling)


def own_clusters_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why tasks of ops whose kind defines the task cannot run in clusters."""
    if tiling.cluster_size == 1 or not workload.own_tile_ops:
        return None
    own = workload.tile_ops[workload.own_tile_ops[0]]
    return f"clusters, but a task of {own.name}, a {own.KIND}, has one CTA: use 1 x 1 CTAs"


def own_resources(workload: Workload, tiling: Tiling) -> list[Resources]:
    """Resources of a CTA for tasks of ops whose kind defines the task, op by op."""
    found = []
    for index in workload.own_tile_ops:
        op, tile, chosen = workload.tile_ops[index], tiling.tiles[index], tiling.of_kind(index)
        found.append(own_rules(op).resources_of(op, tile, chosen, workload.dtype, tiling.num_threads))
    return found
