"""How many kernels may be compiled at a time on this machine."""

from __future__ import annotations

import os
from pathlib import Path

#: Maximum memory of one compile, bytes; a process that compiled `wgmma` kernels with NVRTC 13.0 used a third of it.
BUILD_BYTES = 512 * 2**20


def num_places(num_cores: int, free_bytes: int) -> int:
    """All cores but one, which serves the card, and no more than the memory allows; at least 1."""
    return max(1, min(num_cores - 1, free_bytes // BUILD_BYTES))


def places_here() -> int:
    """The number of places for this machine's cores and its currently free memory."""
    return num_places(len(os.sched_getaffinity(0)), _free_bytes())


def _free_bytes() -> int:
    """The memory that the kernel reports as available, or a container's limit, if that is smaller."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return free
    return min(free, limit - used)
