"""What kernels that convert weights refuse and accept."""

from __future__ import annotations

import pytest

from tests.support.cases import H200, simt, wgmma
from tests.support.converted import TILINGS, pair
from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.space.space import Space
from tuner.ops.gemm.quantised import Scheme


def mma(tile: tuple[int, int, int], num_warps: int = 4) -> Tiling:
    m, n, k = tile
    return Tiling(tiles=(Tile(m=m, n=n, k=k),) * 2, num_stages=2, num_warps=num_warps)


@pytest.mark.parametrize("name", TILINGS)
def test_each_kernel_of_the_tests_is_legal(name: str) -> None:
    scheme, tiling = TILINGS[name]
    assert tiling_problem(pair(scheme), H200, tiling) is None


@pytest.mark.parametrize(
    ("scheme", "tiling", "problem"),
    [
        (Scheme.INT4, wgmma((64, 32, 256), (64, 32, 256)), "converted as operand A: use swap_ab true"),
        (Scheme.INT4, wgmma((8, 64, 128), (8, 64, 256), swap_ab=True), "k must be a multiple of 256"),
        (Scheme.W8A16, wgmma((8, 64, 64), (8, 64, 128), swap_ab=True), "k must be a multiple of 128"),
        (Scheme.INT4, wgmma((128, 64, 256), (64, 32, 256), swap_ab=True), "use at most 64"),
        (Scheme.INT4, simt((4, 16, 512), (4, 16, 512), num_warps=4), "which simt does not convert: use wgmma or mma"),
        (Scheme.W8A16, mma((16, 32, 64)), "k must be one of 128, 256, 512"),
        (Scheme.INT4, mma((16, 32, 128)), "k must be a multiple of 256, for weights in int4_g128"),
        (Scheme.W8A16, mma((16, 32, 128)), "a warp has 8 rows of weights, which are converted in pairs of 8"),
        (Scheme.INT4, mma((64, 64, 256)), "needs about 324 registers, and has 255: use smaller tiles"),
        (
            Scheme.MXFP4,
            wgmma((48, 32, 256), (48, 192, 256), swap_ab=True),
            "tile 48x192x256: 216 registers of sums, fragments and factors, for weights in mxfp4: use at most 208",
        ),
        (Scheme.INT4, wgmma((24, 32, 256), (24, 256, 256), swap_ab=True), "240 registers of sums, fragments and"),
        (Scheme.W8A16, mma((128, 64, 128)), "128 fp32 sums per thread, beside weights in e4m3: use at most 96"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(scheme: Scheme, tiling: Tiling, problem: str) -> None:
    assert problem in str(tiling_problem(pair(scheme), H200, tiling))


@pytest.mark.parametrize(
    ("scheme", "tiling"),
    [
        (Scheme.MXFP4, wgmma((40, 32, 256), (40, 192, 256), swap_ab=True)),
        (Scheme.MXFP4, wgmma((16, 32, 256), (16, 256, 256), swap_ab=True)),  # by mma.sync
        (Scheme.MXFP4, wgmma((64, 128, 256), (64, 256, 256), swap_ab=True, num_warps=8, num_stages=2)),
        (Scheme.INT4_ZP, wgmma((64, 32, 256), (64, 128, 256), swap_ab=True)),
    ],
)
def test_a_thread_may_hold_so_many_registers_of_sums_fragments_and_factors(scheme: Scheme, tiling: Tiling) -> None:
    assert tiling_problem(pair(scheme, m=64, d=4096, hidden=4096), H200, tiling) is None


def test_stages_of_groups_are_whole() -> None:
    tiling = wgmma((8, 64, 512), (8, 64, 256), swap_ab=True)
    found = str(tiling_problem(pair(Scheme.INT4, d=256), H200, tiling))
    assert "up has k 256: weights in int4_g128 need whole stages of 512" in found


@pytest.mark.parametrize("scheme", [Scheme.W8A16, Scheme.INT4, Scheme.MXFP4])
def test_wgmma_is_proposed_on_hopper_and_mma_elsewhere(scheme: Scheme) -> None:
    workload = pair(scheme, m=16, d=4096, hidden=1024)
    for name, engine in (("h200", Engine.WGMMA), ("a100", Engine.MMA), ("l40s", Engine.MMA)):
        assert {tiling.engine for tiling in Space(workload, CATALOGUE[name]).tilings} == {engine}


def test_a_ring_of_codes_takes_their_bytes() -> None:
    """And those of the inputs and of the groups' factors."""
    tiling = TILINGS["int4, mma"][1]
    most = max(
        2 * tile.m * tile.k + rows * (tile.k // 2 + tile.k // 256 * 4)
        for tile, rows in zip(tiling.tiles, (2 * tiling.tiles[0].n, tiling.tiles[1].n), strict=True)
    )
    assert dynamic_smem_bytes(pair(Scheme.INT4), tiling) == tiling.num_stages * most
