"""Samples of the mma engine's tilings of every architecture."""

from __future__ import annotations

from benchmarks.cpu.compile_space import full_pair
from tests.support.covering import covering_sample, covering_values
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tiling

#: One GPU of the catalogue for each architecture.
GPU_OF_ARCH = {
    "sm_80": "a100",
    "sm_86": "a40",
    "sm_89": "rtx4090",
    "sm_90a": "h200",
    "sm_100": "b200",
    "sm_120": "rtx5090",
}
#: Every option at once: the most registers that an epilogue takes.
GATED = full_pair(2048)


def axes(tiling: Tiling) -> tuple[int, ...]:
    """What is compiled in."""
    return (
        tiling.tiles[0].m,
        *(tile.n for tile in tiling.tiles),
        tiling.tiles[0].k,
        tiling.num_stages,
        tiling.num_warps,
    )


def offered(arch: str, workload: Workload) -> list[Tiling]:
    """The mma engine's tilings; wgmma's are compiled in tests/compile/test_wgmma.py."""
    tilings = space_of(workload, CATALOGUE[GPU_OF_ARCH[arch]]).tilings
    return [tiling for tiling in tilings if tiling.engine is Engine.MMA]


def pairs_of_values(arch: str, workload: Workload) -> list[Tiling]:
    """A sample with every pair of values of any two axes."""
    return covering_sample(offered(arch, workload), axes)


def single_values(arch: str, workload: Workload) -> list[Tiling]:
    """A smaller one, with every value of every axis."""
    return covering_values(offered(arch, workload), lambda tiling: set(enumerate(axes(tiling))))
