"""Heights of tiles if a thread may hold few sums: kernels that convert weights, or have scales of blocks."""

from __future__ import annotations

from tuner.core.legal.warpgroups.parts import column_block, max_sums_beside
from tuner.core.problem.workload import Workload
from tuner.core.space.wgmma_tile_shapes import FEW_ROWS, Height

#: The sums of a warpgroup are those of 64 x 128 products, or of 128 x 64. CTAs that share a tile read its weights once,
#: and a tile of more rows converts them for all of these.
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
