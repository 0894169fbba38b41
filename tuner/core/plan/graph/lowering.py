"""From an op to its tiles: its kind's module ``lowering`` defines what they read and write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from tuner.core.plan.graph.boxes import TileSpace
from tuner.core.plan.graph.needs import intervals_of
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Op, Role, Tensor
from tuner.core.problem.tile_op import TileOp
from tuner.core.schedule.tiling import Tile
from tuner.errors import IllegalSchedule


class Lowering(Protocol):
    """The module ``lowering`` of a kind of tile op."""

    def lower(self, op: Any, tile: Tile, chosen: Any, *, num_parts: int, in_band: bool) -> TileSpace:
        """The tiles of an op, each in at most `num_parts` parts. `chosen` has the choices that only its kind knows, or
        is None if they are not known yet. With `in_band`, elements that it reads in its steps signal their arrival."""


@lru_cache(maxsize=8192)
def lower(op: TileOp, tile: Tile, chosen: Any = None, *, num_parts: int = 1, in_band: bool = False) -> TileSpace:
    """The tiles of an op of any kind; see `Lowering.lower`.

    Raises:
        IllegalSchedule: the kind does not define what its tiles read and write.
        ValueError: the number of tiles differs from the op's.
    """
    space = _lowering_of(type(op)).lower(op, tile, chosen, num_parts=num_parts, in_band=in_band)
    wanted = (op.tile_grid(tile.m, tile.n), op.num_steps(tile.k))
    if (space.word_grid, space.num_steps) != wanted:
        made = f"{space.word_grid} tiles of {space.num_steps} steps"
        raise ValueError(f"{op.name}: its kind makes {made}, but declares {wanted[0]} of {wanted[1]}")
    if not op.IS_PRODUCT and (problem := tensors_problem(op, space)):
        raise ValueError(f"{op.name}: {problem}")
    return space


def tensors_problem(op: TileOp, space: TileSpace) -> str:
    """Why an op's boxes do not match its tensors: without a box, a read or write would not be in any proof."""
    tensors = op.tensors(Dtype.FP16)
    reads, writes = ({box.tensor for box in boxes} for boxes in ((one.box for one in space.reads), space.writes))
    for tensor in tensors:
        is_written = tensor.role in (Role.OUTPUT, Role.CACHE)
        if tensor.role is not Role.OUTPUT and tensor.name not in reads:
            return f"it reads {tensor.name}, but its lowering reads no box of that tensor"
        if is_written and tensor.name not in writes:
            return f"it writes {tensor.name}, but its lowering writes no box of that tensor"
        if is_written and (num := _num_written(space, tensor.name)) != tensor.num_elements:
            return f"{tensor.name} has {tensor.num_elements} elements, and its tiles write {num}"
    known = {one.name: one.role for one in tensors}
    if strange := sorted((reads | writes) - known.keys()):
        return f"its lowering has a box of {strange[0]}, which is not one of its tensors"
    if strange := sorted(name for name in writes if known[name] not in (Role.OUTPUT, Role.CACHE)):
        return f"its lowering writes {strange[0]}, which is an {known[strange[0]]}: make it an output, or a cache"
    return limits_problem(space, tensors)


def limits_problem(space: TileSpace, tensors: Sequence[Tensor]) -> str:
    """Why an op's bounds do not match the numbers passed to a launch, so that the proof would not apply to it."""
    known = {one.name: one for one in tensors}
    for limit in (bound.limit for bound in space.bounds):
        if (given := known.get(limit.name)) is None:
            return f"its boxes are bounded by {limit.name}, which is none of its tensors"
        if (given.num_elements, given.range) != (limit.count, (limit.least, limit.most)):
            there = f"{given.num_elements} in the range {given.range}"
            return (
                f"its boxes are bounded by {limit.count} of {limit.least} to {limit.most}, but {limit.name} has {there}"
            )
    return ""


def _num_written(space: TileSpace, tensor: str) -> int:
    """Elements in the boxes of a tensor that the tiles write; tiles share none."""
    count = 0
    for box in space.writes:
        if box.tensor == tensor:
            sizes = (end - begin for begin, end in (intervals_of(one, space) for one in box.extents))
            count += int(np.prod(np.stack([*sizes]), axis=0).sum())
    return count


def _lowering_of(cls: type[Op]) -> Lowering:
    """Lowering of the op's kind, or of a parent class's kind."""
    kinds = [one.KIND for one in cls.__mro__ if issubclass(one, Op) and "KIND" in vars(one)]
    found = next((part for part in (part_of(kind, "lowering") for kind in kinds) if part), None)
    if found is None:
        raise IllegalSchedule(f"{cls.KIND}: this program does not know what its tiles read and write")
    return cast(Lowering, found)
