"""Split-K: how many parts a tile's k-steps may be split into, and the memory in which the parts are added.

Each part of a tile stores its fp32 sums in the tile's slot of the workspace and increments a counter. The last part to
arrive adds the sums in the order of the parts, so the bits of the result do not depend on which part is last.
"""

from __future__ import annotations

from tuner.core.plan.table.words import MAX_PART_STEPS
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling

#: Legal numbers of parts.
NUM_PARTS = (1, 2, 3, 4, 6, 8, 16)
#: Maximum size of the slots of one launch.
MAX_SLOT_BYTES = 512 * 2**20
#: Bytes of one partial sum, fp32.
SUM_BYTES = 4


def num_steps(op: TileOp, tile: Tile) -> int:
    """k-steps of a tile: stages of its main loop."""
    return op.num_steps(tile.k)


def num_tiles(op: TileOp, tile: Tile) -> int:
    """Tiles of the op."""
    num_rows, num_cols = op.tile_grid(tile.m, tile.n)
    return num_rows * num_cols


def waves(num_tiles: int, num_parts: int, num_ctas: int) -> tuple[int, int]:
    """For a single op on `num_ctas` CTAs: the waves of whole tiles, and the waves of parts: those of all tiles, or of
    the tail's tiles if there is more than one wave of tiles."""
    whole, tail = divmod(num_tiles, num_ctas) if num_tiles > num_ctas else (0, num_tiles)
    return whole, -(-tail * num_parts // num_ctas)


def num_split_tiles(workload: Workload, tiling: Tiling) -> int:
    """Number of tiles of all split ops."""
    shapes = enumerate(zip(workload.tile_ops, tiling.tiles, strict=True))
    return sum(num_tiles(op, tile) for index, (op, tile) in shapes if tiling.num_parts(index) > 1)


def slot_bytes(workload: Workload, tiling: Tiling) -> int:
    """Memory for the parts of one tile, bytes: the same for all ops, as much as the largest needs."""
    shapes = enumerate(zip(workload.tile_ops, tiling.tiles, strict=True))
    sums = [tile.m * tile.n * op.rows_per_column * tiling.num_parts(index) for index, (op, tile) in shapes]
    return SUM_BYTES * max((one for index, one in enumerate(sums) if tiling.num_parts(index) > 1), default=0)


def slots_problem(workload: Workload, tiling: Tiling, num_split: int) -> str | None:
    """Why the workspace cannot hold the sums of `num_split` split tiles."""
    if (size := num_split * slot_bytes(workload, tiling)) > MAX_SLOT_BYTES:
        most = MAX_SLOT_BYTES // 2**20
        return f"the parts' sums take {-(-size // 2**20)} MiB of workspace, more than {most}: use fewer parts"
    return None


def split_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why tiles cannot be split in this way, or the simpler name of the split."""
    split = tiling.split_k
    if not split:
        return None
    if len(split) != len(workload.tile_ops):
        return f"{len(split)} splits for {len(workload.tile_ops)} ops: pass one number of parts per op, or none"
    if strange := [parts for parts in split if parts not in NUM_PARTS]:
        return f"{strange[0]} parts: use one of {', '.join(map(str, NUM_PARTS))}"
    if set(split) == {1}:
        return "no op is split: use an empty split_k"
    for op, tile, parts in zip(workload.tile_ops, tiling.tiles, split, strict=True):
        if parts > num_steps(op, tile):
            return (
                f"{parts} parts of {op.name}: a tile has {num_steps(op, tile)} k-steps "
                f"of {tile.k}; use no more parts than that"
            )
        if parts > 1 and num_steps(op, tile) > MAX_PART_STEPS:
            steps = (
                f"a tile has {num_steps(op, tile)} k-steps of {tile.k}, but a plan supports at most {MAX_PART_STEPS}"
            )
            return f"{parts} parts of {op.name}: {steps}, use deeper tiles"
    return None
