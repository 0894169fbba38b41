"""What a wgmma kernel of a chain has beside in shared memory: `Beside` in shared_wgmma.cuh."""

from __future__ import annotations

from tuner.core.plan.split_k import SUM_BYTES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling

#: For each of the tasks that come next: two barriers and a word, in whole vectors.
SLOT_BYTES = 32


def beside_bytes(workload: Workload, tiling: Tiling, feed_slots: int) -> int:
    """For each of the tasks that come next its barriers and the factors of a tile's rows, where an epilogue may wait;
    and with swapped operands room in which warps add up squares."""
    ops = [(index, op, tile.m) for index, (op, tile) in enumerate(zip(workload.ops, tiling.cta_tiles, strict=True))]
    normed = [rows for _, op, rows in ops if op.norm]
    squared = [rows for index, _, rows in ops if workload.writes_squares(index)]
    waits = bool(normed) or any(workload.residual_producer_of(index) is not None for index, _, _ in ops)
    waits = waits or tiling.in_band
    factors = feed_slots * (waits * SLOT_BYTES + SUM_BYTES * max(normed, default=0))
    return factors + tiling.swap_ab * tiling.num_warps * SUM_BYTES * max(squared, default=0)
