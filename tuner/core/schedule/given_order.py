"""A custom order: a schedule with a table of tiles instead of its rasters and its merge."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Interleave, InterleaveKind, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.errors import InvalidInput

#: Maximum number of tiles in a table.
MAX_TILES = 4096


def grids_of(workload: Workload, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Tile rows and tile columns of each tile op."""
    pairs = zip(workload.tile_ops, schedule.tiling.tiles, strict=True)
    return tuple(op.tile_grid(tile.m, tile.n) for op, tile in pairs)


def named(schedule: Schedule, name: str) -> Schedule:
    """The same schedule, but a given order without a name gets `name`, with ``-`` for characters that names cannot
    have."""
    interleave = schedule.ordering.interleave
    if interleave.kind is not InterleaveKind.GIVEN or interleave.name:
        return schedule
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:40]
    return schedule.but(ordering=replace(schedule.ordering, interleave=replace(interleave, name=plain)))


def in_order(schedule: Schedule, tiles: Iterable[Iterable[int]]) -> Schedule:
    """The same kernel with its tiles started in the order of `tiles`. `check_schedule` checks that each occurs once.

    Args:
        tiles: op, tile row and tile column of each tile, counted from 0; an endless iterable is read only up to the
        first entry too many.

    Raises:
        InvalidInput: an entry is not three whole numbers.
    """
    table = []
    for place, tile in enumerate(islice(tiles, MAX_TILES + 1)):
        try:
            op, row, col = (number.__index__() for number in tile)
        except (TypeError, ValueError, AttributeError) as error:
            remedy = "pass op, tile row and tile column of each tile, e.g. (0, 1, 3)"
            raise InvalidInput("order", f"has {tile!r:.60} as tile {place}", remedy) from error
        table.append((op, row, col))
    ordering = replace(
        schedule.ordering,
        rasters=(Raster(),) * len(schedule.tiling.tiles),
        interleave=Interleave(kind=InterleaveKind.GIVEN, tiles=tuple(table)),
        part_major=False,
        partition=0,
    )
    return schedule.but(ordering=ordering)
