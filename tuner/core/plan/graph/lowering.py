"""From an op to its tiles: its kind's file ``lowering`` defines what they read and write."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, cast

from tuner.core.plan.graph.boxes import TileSpace
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import Op
from tuner.core.problem.tile_op import TileOp
from tuner.core.schedule.tiling import Tile
from tuner.errors import IllegalSchedule


class Lowering(Protocol):
    """The file ``lowering`` of a kind of tile op."""

    def lower(self, op: Any, tile: Tile, chosen: Any, *, num_parts: int, in_band: bool) -> TileSpace:
        """The tiles of an op, each in at most this many parts. `chosen` are the choices that only its kind knows,
        None if not known yet; `in_band` means that elements that it reads in its steps signal their own arrival."""


@lru_cache(maxsize=8192)
def lower(op: TileOp, tile: Tile, chosen: Any = None, *, num_parts: int = 1, in_band: bool = False) -> TileSpace:
    """The tiles of an op of any kind; see `Lowering.lower`.

    Raises:
        IllegalSchedule: the kind does not define what its tiles read and write.
        ValueError: their number differs from the op's.
    """
    space = _lowering_of(type(op)).lower(op, tile, chosen, num_parts=num_parts, in_band=in_band)
    wanted = (op.tile_grid(tile.m, tile.n), op.num_steps(tile.k))
    if (space.word_grid, space.num_steps) != wanted:
        made = f"{space.word_grid} tiles of {space.num_steps} steps"
        raise ValueError(f"{op.name}: its kind makes {made}, but declares {wanted[0]} of {wanted[1]}")
    return space


def _lowering_of(cls: type[Op]) -> Lowering:
    """Lowering of the op's kind, or of a parent class's kind."""
    kinds = [one.KIND for one in cls.__mro__ if issubclass(one, Op) and "KIND" in vars(one)]
    found = next((part for part in (part_of(kind, "lowering") for kind in kinds) if part), None)
    if found is None:
        raise IllegalSchedule(f"{cls.KIND}: this program does not know what its tiles read and write")
    return cast(Lowering, found)
