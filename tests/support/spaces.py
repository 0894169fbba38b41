"""Spaces of schedules, shared by the tests of one process: to list the tilings of one takes seconds."""

from __future__ import annotations

from functools import lru_cache

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.space.space import Space


@lru_cache(maxsize=12)
def space_of(workload: Workload, gpu: Gpu) -> Space:
    """The space, which changes in nothing; the orderings of a tiling are worked out once, too."""
    space = Space(workload, gpu)
    space.orderings = lru_cache(maxsize=4096)(space.orderings)
    return space
