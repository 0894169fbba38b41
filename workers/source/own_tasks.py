"""The device text of tile ops whose kind has what a task does."""

from __future__ import annotations

from typing import Any, Protocol, cast

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.errors import IllegalSchedule


class TaskSource(Protocol):
    """The file ``source`` of such a kind."""

    def task_of(self, op: Any, tile: Tile, chosen: Any, dtype: Dtype) -> str:
        """CUDA C++: the members of a struct, among them ``run``, as own_task.cuh has it. `chosen` is what only the kind
        chooses."""

    def version(self) -> str:
        """A digest of the text: results of another are a weaker match."""


def own_tasks(workload: Workload, tiling: Tiling) -> dict[int, str]:
    """By its index, what each such op's text is in a source.

    Raises:
        IllegalSchedule: a kind has none.
    """
    return {
        index: _specialisation(index, op, tiling.tiles[index], tiling.of_kind(index), workload.dtype)
        for index, op in enumerate(workload.tile_ops)
        if not op.IS_PRODUCT
    }


def _specialisation(index: int, op: TileOp, tile: Tile, chosen: Any, dtype: Dtype) -> str:
    if (part := part_of(op.KIND, "source")) is None:
        raise IllegalSchedule(f"{op.KIND}: there is no device text of its tasks here")
    text = cast(TaskSource, part).task_of(op, tile, chosen, dtype)
    return f"// ---- {op.name}, a {op.KIND}\ntemplate <>\nstruct OwnTask<{index}> {{\n{text}}};\n"
