"""Heights of the wgmma engine's tiles: what they determine in a tiling, and which ones suit a workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Any

from tuner.core.legal.warpgroups.parts import column_block, max_sums_beside
from tuner.core.legal.wgmma import (
    BLOCK_ROWS,
    COLUMNS,
    MAX_ACCUMULATORS,
    PING_PONG_WARPS,
    WARP_ROWS,
    WARPS_PER_GROUP,
)
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling, Warpgroups

#: Rows up to which loading the weights dominates: one low tile row, with tasks divided by their bytes alone.
FEW_ROWS = 64
#: Minimum rows of W per task: with fewer, a task reads inputs as if it had as many as this.
FEW_COLUMNS = 32
#: Maximum rows of a swapped tile, and maximum number of tile rows where each op has a height of its own.
MOST_SWAPPED_ROWS, MAX_OWN_TILE_ROWS = 256, 6


#: Bytes that the tiles of ops that gather their rows load from the L2 in all, from which its rate likely limits them,
#: since each pixel is read once per element of a filter; and the minimum share that two CTAs save by loading together.
#: Source: docs/findings/conv-many-images.md.
GATHERED_BYTES, LEAST_SAVED = 40e6, 0.15

#: What a height determines in a tiling besides the rows of its tiles.
HEIGHT_FIELDS = ("num_warps", "cluster_m", "cluster_k", "warpgroups", "swap_ab")


@dataclass(frozen=True)
class Height:
    """Common properties of all ops' tiles."""

    #: Rows of a tile, over all CTAs of a cluster.
    m: int
    num_warps: int
    #: CTAs that share a tile's weights.
    cluster_m: int = 1
    warpgroups: Warpgroups = Warpgroups.COOPERATIVE
    #: Whether the warpgroups share the columns.
    swap_ab: bool = False
    #: CTAs that split a tile's K.
    cluster_k: int = 1

    @property
    def cluster_size(self) -> int:
        """CTAs that compute a tile."""
        return self.cluster_m * self.cluster_k

    @property
    def groups(self) -> int:
        """Warpgroups that multiply a task together."""
        return 1 if self.warpgroups is Warpgroups.PING_PONG else self.num_warps // WARPS_PER_GROUP

    @property
    def in_turns(self) -> Height:
        """The height with two warpgroups that take turns."""
        return replace(self, num_warps=PING_PONG_WARPS, warpgroups=Warpgroups.PING_PONG)

    @property
    def fields(self) -> dict[str, Any]:
        """The properties as fields of a tiling, without the rows."""
        return {name: getattr(self, name) for name in HEIGHT_FIELDS}

    def of_cta(self, tile: Tile) -> Tile:
        """The part of the tile that one CTA computes."""
        return replace(tile, m=tile.m // self.cluster_m)


#: For more rows, maximum heights of a tile: a tile is only as high as the same number of tiles requires. Two CTAs
#: that share a tile read its weights once; a warpgroup that multiplies two blocks has whole ones. With ping-pong, one
#: warpgroup holds all sums of a tile. With more rows than columns, swapped operands read less shared memory.
HIGH_TILES = (
    Height(128, 8),
    Height(192, 12),
    Height(256, 8, swap_ab=True),
    Height(256, 8, 2),
    Height(256, 8),
    Height(512, 8, 2),
    Height(256, 4, swap_ab=True),
    Height(192, 12, swap_ab=True),
    Height(64, 4),
    Height(128, 8).in_turns,
    Height(64, 4).in_turns,
)
#: The height for rows that one tile covers: two CTAs with few rows each, which load all weights once. Two tile rows
#: would read the weights from memory only once if both requested them at the same time.
SHARED_TILE = Height(128, 4, 2)
#: Minimum ratio of rows to columns of an op with few columns, and how many heights that fill waves are tried for it.
MANY_ROWS, NUM_FILLING = 4, 2
#: Ops with a small output, such as convolutions of few images.
SMALL_OUTPUT_TILES = (Height(64, 4), Height(64, 4, swap_ab=True), Height(32, 4, swap_ab=True))


def small_output_tiles(workload: Workload, gpu: Gpu) -> list[Height]:
    """Low tiles for more than few rows, if an op has at most one narrow tile per SM: so no sums have to be added up."""

    def num_tiles(op: TileOp, height: Height) -> int:
        return ceil(op.m / height.m) * ceil(op.n / (BLOCK_ROWS if height.swap_ab else FEW_COLUMNS))

    ops = [op for op in workload.tile_ops if op.IS_PRODUCT and op.m > FEW_ROWS]
    return [one for one in SMALL_OUTPUT_TILES if any(num_tiles(op, one) <= gpu.num_sms for op in ops)]


def filling_tiles(workload: Workload, gpu: Gpu) -> list[Height]:
    """Heights for few columns: for few rows low ones, for many the swapped ones whose tiles just fill whole waves."""
    op, found = max(workload.tile_ops, key=lambda one: one.num_flops), dict[Height, int]()
    for groups, blocks in product((1, 2), (1, 2)) if op.IS_PRODUCT and op.m >= MANY_ROWS * op.n else ():
        tiles_n, most = ceil(op.n / (BLOCK_ROWS * groups * blocks)), min(256, 2 * MAX_ACCUMULATORS[groups] // blocks)
        num_waves = ceil(op.m * tiles_n / (most * gpu.num_sms))
        rows = COLUMNS * ceil(op.m * tiles_n / (num_waves * gpu.num_sms * COLUMNS))
        if FEW_ROWS < rows <= most and BLOCK_ROWS * groups * blocks < 2 * op.n:
            height = Height(rows, WARPS_PER_GROUP * groups, swap_ab=True)
            found[height] = max(found.get(height, 0), rows * groups * blocks)
    largest = sorted(found, key=found.__getitem__, reverse=True)[:NUM_FILLING]
    return [*small_output_tiles(workload, gpu), *largest]


def covering(rows: int, most: Height) -> Height:
    """The lowest height that covers the rows with as many tiles as `most`: rows past the last one take time, too."""
    block_rows = BLOCK_ROWS * most.groups * most.cluster_m
    step = WARP_ROWS * most.cluster_m if most.m <= block_rows else block_rows
    if most.swap_ab:
        step = COLUMNS * most.cluster_m
    return replace(most, m=-(-rows // (-(-rows // most.m) * step)) * step)


def swapped_heights(rows: int) -> list[Height]:
    """Heights with swapped operands that cover the rows with each possible number of tile rows."""
    counts = range(-(-rows // MOST_SWAPPED_ROWS), MAX_OWN_TILE_ROWS + 1)
    most = dict.fromkeys(-(-rows // (count * COLUMNS)) * COLUMNS for count in counts)
    groups = (1, 2, 3)
    return [Height(m, WARPS_PER_GROUP * one, swap_ab=True) for m in most if m > FEW_ROWS for one in groups]


def loading_together(workload: Workload, tiling: Tiling) -> Iterator[Tiling]:
    """For ops that gather their rows and whose tiles load much: the tiling with two CTAs that load once what both read.
    That is the rows, if each op has two tiles side by side, or the filters, if that saves enough."""
    pairs = [*zip(workload.tile_ops, tiling.tiles, strict=True)] if tiling.cluster_size == 1 else []
    size = workload.dtype.size_bytes
    loaded = [
        ceil(op.m / tile.m) * ceil(op.n / tile.n) * (tile.m + tile.n) * op.k * size
        for op, tile in pairs
        if op.IS_PRODUCT and op.GATHERS
    ]
    if len(loaded) < len(pairs) or sum(loaded) < GATHERED_BYTES:
        return
    for name, cluster in (("n", "cluster_n"), ("m", "cluster_m")):
        other = "m" if name == "n" else "n"
        is_there = all(2 * getattr(tile, name) <= getattr(op, name) for op, tile in pairs)
        if is_there and all(getattr(tile, other) >= LEAST_SAVED * 2 * (tile.m + tile.n) for _, tile in pairs):
            tiles = tuple(replace(tile, **{name: 2 * getattr(tile, name)}) for tile in tiling.tiles)
            yield tiling.but(tiles=tiles, **{cluster: 2})


#: If a thread may hold few sums, as where kernels convert weights or have scales of blocks: the sums of a warpgroup are
#: those of 64 x 128 products, or of 128 x 64. CTAs that share a tile read its weights once, and a tile of more rows
#: converts them for all of these.
_TILES = (
    Height(128, 8, swap_ab=True),
    Height(128, 8, 2, swap_ab=True),
    Height(256, 8, 4, swap_ab=True),
    Height(256, 8, 2, swap_ab=True),
    Height(64, 8, swap_ab=True),
    Height(64, 4, swap_ab=True),
)
#: If W as operand B leaves room for more sums: one CTA's, or two CTAs' that read the weights once.
_UNSWAPPED_TILES = (Height(128, 8), Height(256, 8, 2))


def has_equal_rings(tiling: Tiling) -> bool:
    """Whether tiles are high and their rings equally deep: a step then tests one barrier instead of two, which
    forecasts do not include (docs/findings/conv-many-images.md)."""
    return tiling.tiles[0].m > FEW_ROWS and tiling.num_stages == tiling.input_stages


def has_few_sums(workload: Workload) -> bool:
    """Whether a thread may hold few sums, so that tiles of the same height need more warps."""
    return any(op.IS_PRODUCT and (op.weights or max_sums_beside(op, 1, swap_ab=True)) for op in workload.tile_ops)


def few_sums_tiles(workload: Workload) -> list[Height]:
    """The heights for more than few rows; empty if a thread may hold more sums."""
    rows = max(op.m for op in workload.tile_ops)
    if rows <= FEW_ROWS or not has_few_sums(workload):
        return []
    has_blocks = any(op.IS_PRODUCT and column_block(op) for op in workload.tile_ops)
    return [one for one in (*_UNSWAPPED_TILES * has_blocks, *_TILES) if one.m < 2 * rows]


def sharing_heights(heights: Iterable[Height], sharers: tuple[int, ...]) -> tuple[Height, ...]:
    """The heights with each number of `sharers` CTAs that split K, if CTAs share no weights and warpgroups do not take
    turns. With swapped operands, the CTAs share the rows of a tile when adding up."""
    able = [one for one in heights if one.cluster_m == 1 and one.warpgroups is Warpgroups.COOPERATIVE]
    return tuple(
        replace(one, cluster_k=count, m=max(one.m, COLUMNS * count) if one.swap_ab else one.m)
        for count in sharers
        for one in able
    )
