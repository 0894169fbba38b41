"""Samples of the mma engine's tilings of every architecture."""

from __future__ import annotations

from functools import lru_cache

from tests.support.covering import covering_sample, covering_values
from tests.support.tiling_builds import full_pair
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.mma_tilings import MmaTilings

#: One GPU of the catalogue for each architecture.
GPU_OF_ARCH = {
    "sm_80": "a100",
    "sm_86": "a40",
    "sm_89": "rtx4090",
    "sm_90a": "h200",
    "sm_100": "b200",
    "sm_120": "rtx5090",
}
#: All options at once: the most registers that an epilogue takes.
GATED = full_pair(2048)


def axes(tiling: Tiling) -> tuple[int, ...]:
    """The compiled-in axes."""
    return (
        tiling.tiles[0].m,
        *(tile.n for tile in tiling.tiles),
        tiling.tiles[0].k,
        tiling.num_stages,
        tiling.num_warps,
    )


@lru_cache(maxsize=12)
def offered(arch: str, workload: Workload) -> tuple[Tiling, ...]:
    """The mma engine's tilings; wgmma's are compiled in tests/compile/test_wgmma.py."""
    return tuple(MmaTilings(workload, CATALOGUE[GPU_OF_ARCH[arch]]).tilings())


def pairs_of_values(arch: str, workload: Workload) -> list[Tiling]:
    """A sample with every pair of values of any two axes."""
    return covering_sample(offered(arch, workload), axes)


def single_values(arch: str, workload: Workload) -> list[Tiling]:
    """A smaller sample, with every value of every axis."""
    return covering_values(offered(arch, workload), lambda tiling: set(enumerate(axes(tiling))))
