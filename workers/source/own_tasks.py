"""The device text of tile ops whose kind has what a task does, or where the rows of a product lie."""

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


class GatherSource(Protocol):
    """The file ``source`` of a kind of products that gathers its rows."""

    def gather_of(self, op: Any) -> str:
        """CUDA C++: the members of a struct, as gather.cuh has it."""

    def version(self) -> str:
        """A digest of the text."""


def gathers(workload: Workload) -> dict[int, str]:
    """By its index, what each op that gathers its rows says in a source of where they lie.

    Raises:
        IllegalSchedule: a kind does not say it.
    """
    return {index: _gather(index, op) for index, op in enumerate(workload.tile_ops) if op.GATHERS}


def _gather(index: int, op: TileOp) -> str:
    if (part := part_of(op.KIND, "source")) is None:
        raise IllegalSchedule(f"{op.KIND}: nothing says here where its rows lie")
    text = cast(GatherSource, part).gather_of(op)
    return f"// ---- {op.name}, a {op.KIND}\ntemplate <>\nstruct Gather<{index}> {{\n{text}}};\n"


def _specialisation(index: int, op: TileOp, tile: Tile, chosen: Any, dtype: Dtype) -> str:
    if (part := part_of(op.KIND, "source")) is None:
        raise IllegalSchedule(f"{op.KIND}: there is no device text of its tasks here")
    text = cast(TaskSource, part).task_of(op, tile, chosen, dtype)
    return f"// ---- {op.name}, a {op.KIND}\ntemplate <>\nstruct OwnTask<{index}> {{\n{text}}};\n"
