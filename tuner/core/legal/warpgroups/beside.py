"""Additional shared memory of a wgmma kernel of a chain: `Beside` in shared_wgmma.cuh."""

from __future__ import annotations

from tuner.core.legal.warpgroups.parts import exchanged_numbers, team_warps
from tuner.core.legal.warpgroups.waiting import sums_in_band_problem
from tuner.core.plan.order.split_k import SUM_BYTES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling, Warpgroups

#: Bytes for each of the next tasks: two barriers and a word, in whole vectors.
SLOT_BYTES = 32
#: Maximum fp32 sums per thread if a kernel has norms and adds up parts of the op, or of some op with ping-pong. With
#: 120 or more, the compiler spilled.
MAX_ACCUMULATORS_WITH_NORMS = 112


def sums_beside_problem(workload: Workload, tiling: Tiling, op_index: int, num_sums: int) -> str | None:
    """Why a kernel would spill registers with `num_sums` sums of one op and warps that read in band, or norms
    together with parts."""
    if problem := sums_in_band_problem(tiling, op_index, num_sums):
        return problem
    takes_turns = tiling.warpgroups is Warpgroups.PING_PONG
    adds = tiling.num_parts(op_index) > 1 or (takes_turns and bool(tiling.split_k))
    if not adds or num_sums <= MAX_ACCUMULATORS_WITH_NORMS or not any(op.norm for op in workload.tile_ops):
        return None
    what = (
        f"tile {tiling.tiles[op_index]}: {num_sums} sums per thread spill when parts are added and rows are normalized"
    )
    return f"{what}: use at most {MAX_ACCUMULATORS_WITH_NORMS}"


def beside_bytes(workload: Workload, tiling: Tiling, feed_slots: int) -> int:
    """For each of the next tasks its barriers, and the factors of a tile's rows if an epilogue may wait; with swapped
    operands also space for warps to add up squares, or to exchange numbers for a part of an epilogue."""
    ops = [
        (index, op, tile.m) for index, (op, tile) in enumerate(zip(workload.tile_ops, tiling.cta_tiles, strict=True))
    ]
    normed = [rows for _, op, rows in ops if op.norm]
    warps = team_warps(tiling)
    squared = [rows * warps for index, _, rows in ops if workload.writes_squares(index)]
    waits = bool(normed) or any(workload.residual_producer_of(index) is not None for index, _, _ in ops)
    waits = waits or tiling.in_band
    factors = feed_slots * (waits * SLOT_BYTES + SUM_BYTES * max(normed, default=0))
    exchanged = [rows * exchanged_numbers(op, warps) for _, op, rows in ops]
    teams = tiling.num_warps // warps
    return factors + tiling.swap_ab * teams * SUM_BYTES * max((*squared, *exchanged), default=0)
