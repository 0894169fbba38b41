"""Options of the wgmma engine that the engines with one ring, mma and simt, do not have."""

from __future__ import annotations

from tuner.core.schedule.tiling import Epilogue, Tiling, Warpgroups


def one_ring_problem(tiling: Tiling) -> str | None:
    """Names an option of the tiling that its engine does not support."""
    engine = f"the {tiling.engine} engine"
    if tiling.cluster_size > 1:
        return f"clusters of {' x '.join(map(str, tiling.cluster))} CTAs: not supported by {engine}; use 1 for each"
    if tiling.warpgroups is not Warpgroups.COOPERATIVE:
        return f"warpgroups {tiling.warpgroups}: all warps of {engine} share each task; use cooperative"
    if tiling.swap_ab:
        return f"swap_ab: {engine} has no operands to swap, use false"
    if tiling.epilogue is not Epilogue.DIRECT:
        return f"epilogue {tiling.epilogue}: the threads of {engine} store their own sums; use direct"
    if tiling.input_stages or tiling.window:
        return f"{tiling.input_stages} input stages, window {tiling.window}: {engine} has one ring, use 0 and 0"
    if tiling.ahead_window:
        return f"ahead window {tiling.ahead_window}: {engine} has one ring, use 0"
    if tiling.in_band:
        return f"in_band: {engine} has no warps that read in band; use false"
    if tiling.startup_prefetch:
        return f"startup prefetch of {tiling.startup_prefetch} stages: not supported by {engine}; use 0"
    return None
