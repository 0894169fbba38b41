"""The source of a candidate's kernel, as the workers render it."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling


def source_of(workload: Workload, tiling: Tiling) -> str:
    """CUDA C++, the same for every GPU and every ordering.

    Raises:
        IllegalSchedule: no warp grid fits a tile.
    """
    from tuner.workers.source.render import render

    return render(workload, tiling)
