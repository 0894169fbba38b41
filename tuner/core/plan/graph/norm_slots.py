"""Where sums of squares of rows are stored, between the op that writes them and those that normalize its output.

A tensor ``<op>.squares`` [slots, stride] of fp32: the threads that store a tile write, for each of its rows inside the
matrix, the sum of squares of the stored values to the slot of the tile's columns. A reader adds the slots of a row in
order. The squares of an input have one slot, which the caller provides.
"""

from __future__ import annotations

from tuner.core.problem.epilogue.norm import slot_stride
from tuner.core.problem.workload import ROW_SCALE_BYTES, Workload
from tuner.core.schedule.tiling import Tiling

__all__ = ["norm_slots", "slot_stride", "slots_read", "squares_bytes"]


def norm_slots(workload: Workload, tiling: Tiling, op_index: int) -> int:
    """Slots of the op's squares: one for the columns of each CTA's tile, or of each share of the tile if CTAs split K.

    With swapped operands, a share consists of some of the tile's rows, so the tile's columns have one slot.
    """
    op, tile = workload.tile_ops[op_index], tiling.tiles[op_index]
    shares = 1 if tiling.swap_ab else tiling.cluster_k
    return -(-op.n // tile.n) * tiling.cluster_n * shares


def slots_read(workload: Workload, tiling: Tiling, op_index: int) -> int:
    """Slots that a task of op `op_index` adds for each of its rows; 0 if it has no norm."""
    if not workload.tile_ops[op_index].norm:
        return 0
    producer = workload.norm_producer_of(op_index)
    return 1 if producer is None else norm_slots(workload, tiling, producer)


def squares_bytes(workload: Workload, tiling: Tiling, op_index: int) -> int:
    """Bytes of the op's squares; 0 if no norm needs them."""
    if not workload.writes_squares(op_index):
        return 0
    return norm_slots(workload, tiling, op_index) * slot_stride(workload.tile_ops[op_index].m) * ROW_SCALE_BYTES
