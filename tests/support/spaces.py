"""Schedule spaces, cached in one process because listing tilings takes seconds."""

from __future__ import annotations

from functools import lru_cache

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.space.joint import AnySpace, JointSpace
from tuner.core.space.space import Space

#: (workload, gpu) -> the space, which only changes by what it caches.
space_of = lru_cache(maxsize=12)(Space)


@lru_cache(maxsize=12)
def any_space_of(workload: Workload, gpu: Gpu) -> AnySpace:
    """The space of any workload, including one with an attention."""
    return JointSpace(workload, gpu) if workload.launch_ops else space_of(workload, gpu)
