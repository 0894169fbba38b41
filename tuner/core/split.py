"""Split-K: how many parts a tile's k-steps may be split into, and the memory in which the parts meet.

Each part of a tile leaves its fp32 sums in a slot of the workspace and counts itself in; the last one to arrive adds
the slots up in the order of the parts, so that the result is the same bits whoever that is.
"""

from __future__ import annotations

from collections.abc import Iterator

from tuner.core.schedule import Tile, Tiling
from tuner.core.workload import GemmOp, Workload

#: Legal numbers of parts.
NUM_PARTS = (1, 2, 3, 4, 6, 8, 16)
#: Slots of one launch take no more.
MAX_SLOT_BYTES = 512 * 2**20
#: Of one partial sum, fp32.
SUM_BYTES = 4


def num_steps(op: GemmOp, tile: Tile) -> int:
    """k-steps of a tile: stages of its main loop."""
    return -(-op.k // tile.k)


def num_tiles(op: GemmOp, tile: Tile) -> int:
    """Tiles of the op."""
    return -(-op.m // tile.m) * -(-op.n // tile.n)


def _split_ops(workload: Workload, tiling: Tiling) -> Iterator[tuple[int, int]]:
    """(tiles, bytes of all their slots) of each op that is split, in the workload's order."""
    for index, (op, tile) in enumerate(zip(workload.ops, tiling.tiles, strict=True)):
        parts = tiling.num_parts(index)
        if parts > 1:
            slot = tile.m * tile.n * op.rows_per_column * SUM_BYTES
            yield num_tiles(op, tile), num_tiles(op, tile) * parts * slot


def num_split_tiles(workload: Workload, tiling: Tiling) -> int:
    """Tiles of CTAs that are split, of all ops: each has a counter of the parts that have arrived."""
    return sum(tiles for tiles, _ in _split_ops(workload, tiling)) * tiling.cluster_size


def slot_bytes(workload: Workload, tiling: Tiling) -> int:
    """Memory for the partial sums of all split tiles, bytes: tile by tile, and part by part within a tile."""
    return sum(size for _, size in _split_ops(workload, tiling))


def split_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why tiles cannot be split so, or the plain name of the split."""
    split = tiling.split_k
    if not split:
        return None
    if len(split) != len(workload.ops):
        return f"{len(split)} splits for {len(workload.ops)} ops: give one number of parts per op, or none"
    if strange := [parts for parts in split if parts not in NUM_PARTS]:
        return f"{strange[0]} parts: use one of {', '.join(map(str, NUM_PARTS))}"
    if set(split) == {1}:
        return "no op is split: say so by an empty split_k"
    for op, tile, parts in zip(workload.ops, tiling.tiles, split, strict=True):
        if parts > num_steps(op, tile):
            return f"{parts} parts of {op.name}: a tile has {num_steps(op, tile)} k-steps of {tile.k}, use no more"
    if (size := slot_bytes(workload, tiling)) > MAX_SLOT_BYTES:
        most = MAX_SLOT_BYTES // 2**20
        return f"the parts' sums take {-(-size // 2**20)} MiB of workspace, more than {most}: use fewer parts"
    return None
