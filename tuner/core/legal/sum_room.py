"""The shared memory that CTAs which split a tile's K may use for the sums that they exchange."""

from __future__ import annotations

from tuner.core.legal.wgmma import received_bytes, smem_bytes
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.tiling import Tiling

_ROOM = axes_of(Tiling)["sum_kib"]


def with_least_room(workload: Workload, tiling: Tiling) -> Tiling:
    """The tiling with the smallest size that its sums actually use; a larger one would be another name of the same
    kernel.
    """
    if _ROOM.is_plain(tiling.sum_kib):
        return tiling
    smaller = [tiling.but(sum_kib=room) for room in _ROOM.values if room <= tiling.sum_kib]
    if tiling.cluster_k == 1:
        return smaller[0]
    taken_bytes = received_bytes(workload, tiling)
    return next(one for one in smaller if received_bytes(workload, one) == taken_bytes)


def with_most_room(workload: Workload, gpu: Gpu, tiling: Tiling) -> Tiling:
    """The tiling with all the space that its rings leave, if CTAs split K."""
    if tiling.cluster_k == 1:
        return tiling
    rooms = (tiling.but(sum_kib=room) for room in reversed(_ROOM.values))
    fitting = (one for one in rooms if smem_bytes(workload, one) <= gpu.smem_per_cta_bytes)
    return with_least_room(workload, next(fitting, tiling))


def sum_room_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the tiling cannot have its amount of room for sums; None if it can."""
    least = with_least_room(workload, tiling).sum_kib
    if least == tiling.sum_kib:
        return None
    why = "no CTAs split a tile's K" if tiling.cluster_k == 1 else "a smaller value gives them the same space"
    return f"sum_kib {tiling.sum_kib}: {why}, use {least}"
