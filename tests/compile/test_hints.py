"""Cache hints in the compiled code: each changes an instruction, and none causes spills."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest

from tests.compile.test_kernels import SMALL
from tests.support.cases import H200, wgmma
from tests.support.covering import covering_values
from tests.support.lanes import soak_unless
from tests.support.reports import report_of
from tests.support.tiling_samples import GATED
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import CacheHint, Engine, Tile, Tiling
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.render import render

ALIGNED = ffn_pair(m=64, d_in=64, d_hidden=128, d_out=64)
#: Rows that are 2, 4 and 8 bytes longer than a whole number of 16-byte copies.
RAGGED = [ffn_pair(m=7, d_in=32 + k, d_hidden=64 + k, d_out=5) for k in (1, 2, 4)]
WIDEST = Tiling(tiles=(Tile(m=128, n=128, k=64), Tile(m=128, n=256, k=64)), num_stages=3, num_warps=8)


def hinted(workload: Workload, chosen: Tiling) -> list[Tiling]:
    """The tiling with every legal pair of hints."""
    asked = (replace(chosen, weight_hint=w, intermediate_hint=i) for w in CacheHint for i in CacheHint)
    return [one for one in asked if tiling_problem(workload, H200, one) is None]


@pytest.mark.parametrize(
    "workload",
    soak_unless(lambda place, _: place == 2, [ALIGNED, *RAGGED]),
    ids=lambda workload: workload.describe(),
)
def test_every_hint_is_other_code_for_every_width_of_a_copy(workload: Workload) -> None:
    codes = {report_of(render(workload, one), "sm_80").code for one in hinted(workload, SMALL)}
    assert len(codes) == 6


def hints_of(tiling: Tiling) -> set[Hashable]:
    return {(0, tiling.weight_hint), (1, tiling.intermediate_hint)}


@pytest.mark.parametrize("every_pair", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_every_hint_is_other_code_of_the_wgmma_engine(every_pair: bool) -> None:
    every = hinted(ALIGNED, wgmma((16, 64, 64)))
    assert len(every) == 9
    chosen = every if every_pair else covering_values(every, hints_of)
    assert len({report_of(render(ALIGNED, one), "sm_90a").code for one in chosen}) == len(chosen)


@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("chosen", [WIDEST, wgmma((128, 128, 64), num_warps=8)], ids=str)
def test_hints_cost_no_registers_that_there_are_not(chosen: Tiling, most: int) -> None:
    every_hint = covering_values(hinted(GATED, chosen), hints_of)
    assert 2 <= len(every_hint) <= 3
    for one in every_hint[-most:]:
        report = report_of(render(GATED, one), "sm_90a" if chosen.engine is Engine.WGMMA else "sm_80")
        assert (report.resources.spill_bytes, report.resources.warnings) == (0, ())
