"""How a wgmma kernel handles tasks that wait: how it fills the ring in the meantime, and whether it reads in band."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Epilogue, Tiling, Warpgroups

#: Warps that multiply if others read in band: they leave registers for four more warps.
IN_BAND_WARPS = 4
#: fp32 sums per thread, for a whole tile and for one in parts, since the reading warps take a third of the registers.
MOST_SUMS_IN_BAND, MOST_SUMS_OF_PARTS_IN_BAND = 112, 64
#: Maximum rows for in-band reads. Four warps have 16 KB of loads in flight, and a round trip to the L2 takes about a
#: microsecond while weights stream. An SM streams 33 KB of weights in that time. A tile of 32 rows of W then needs 1 KB
#: of inputs per row of A. So 8 rows need half of what the warps can read.
MOST_IN_BAND_ROWS = 8


def waiting_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why tasks cannot wait in this way."""
    return _ahead_window_problem(workload, tiling) or (_in_band_problem(workload, tiling) if tiling.in_band else None)


def reads_another(workload: Workload) -> bool:
    """Whether an op reads another op's output as A."""
    return any(workload.producer_of(op) is not None for op in range(len(workload.tile_ops)))


def sums_in_band_problem(tiling: Tiling, op_index: int, sums: int) -> str | None:
    """Why a thread does not have registers for `sums` fp32 sums of a tile of the op."""
    is_split = tiling.num_parts(op_index) > 1
    most = MOST_SUMS_OF_PARTS_IN_BAND if is_split else MOST_SUMS_IN_BAND
    if not tiling.in_band or sums <= most:
        return None
    where = "when parts are added next to" if is_split else "next to"
    return (
        f"tile {tiling.tiles[op_index]}: {sums} sums per thread spill {where} warps that read in band: use at most "
        f"{most}"
    )


def _ahead_window_problem(workload: Workload, tiling: Tiling) -> str | None:
    if not tiling.ahead_window:
        return None
    most = (tiling.window or tiling.num_stages) - 1
    if not 0 < tiling.ahead_window <= most:
        what = f"a window of {tiling.window}" if tiling.window else f"{tiling.num_stages} stages"
        numbers = f"use 1 to {most}, or 0 for no other limit" if most else "use 0"
        return f"ahead window {tiling.ahead_window} of {what}: {numbers}"
    if not any(workload.producers_of(op) for op in range(len(workload.tile_ops))):
        return f"ahead window {tiling.ahead_window}: no op reads another, so no task waits: use 0"
    return None


def _in_band_problem(workload: Workload, tiling: Tiling) -> str | None:
    if own := workload.own_tile_ops:
        return f"in_band with {workload.tile_ops[own[0]].name}: its tasks wait for their inputs; use false"
    if gathering := [op.name for op in workload.tile_ops if op.GATHERS]:
        return f"in_band with {gathering[0]}: its rows are gathered, use false"
    rows = max(op.m for op in workload.tile_ops)
    if not reads_another(workload):
        return "in_band: no op reads the output of another one as A; use false"
    if rows > MOST_IN_BAND_ROWS:
        return f"in_band of {rows} rows: so many elements cannot be read as fast as weights; use up to 8 rows, or false"
    if tiling.num_warps != IN_BAND_WARPS or tiling.warpgroups is not Warpgroups.COOPERATIVE:
        return f"in_band of {tiling.num_warps} warps that multiply: use {IN_BAND_WARPS} and cooperative, or false"
    if tiling.epilogue is not Epilogue.DIRECT:
        return f"in_band with epilogue {tiling.epilogue}: polled elements are stored by threads; use direct"
    if tiling.cluster_m * tiling.cluster_n > 1:
        cluster = f"clusters of {tiling.cluster_m} x {tiling.cluster_n} CTAs"
        return f"in_band in {cluster}: each CTA reads its inputs separately; use cluster_m and cluster_n 1"
    return None
