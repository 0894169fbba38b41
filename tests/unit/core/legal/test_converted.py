"""What kernels that convert weights refuse and accept."""

from __future__ import annotations

import pytest

from tests.support.cases import H200, simt, wgmma
from tests.support.converted import TILINGS, pair
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.space import Space
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.quantised import Scheme


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
        (Scheme.INT4, simt((4, 16, 512), (4, 16, 512), num_warps=4), "which only wgmma converts: use wgmma"),
        (
            Scheme.W8A16,
            Tiling(tiles=(Tile(m=16, n=32, k=64),) * 2, num_stages=3, num_warps=4),
            "which only wgmma converts: use wgmma",
        ),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(scheme: Scheme, tiling: Tiling, problem: str) -> None:
    assert problem in str(tiling_problem(pair(scheme), H200, tiling))


def test_stages_of_groups_are_whole() -> None:
    tiling = wgmma((8, 64, 512), (8, 64, 256), swap_ab=True)
    found = str(tiling_problem(pair(Scheme.INT4, d=256), H200, tiling))
    assert "up has k 256: weights in int4_g128 need whole stages of 512" in found


@pytest.mark.parametrize("scheme", [Scheme.W8A16, Scheme.INT4])
def test_there_is_a_space_on_hopper_alone(scheme: Scheme) -> None:
    assert Space(pair(scheme, m=16, d=4096, hidden=1024), H200).tilings
    with pytest.raises(IllegalSchedule, match="wgmma"):
        Space(pair(scheme), CATALOGUE["a100"])
