"""Kernels of 8-bit operands on the CPU, from their own source: the emulated tensor cores keep 14 bits, as those of
sm_90 do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import H200, wgmma
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.quantised import (
    BLOCK_FAULTS,
    BLOCK_TILINGS,
    FAULTS,
    GROUP_FAULTS,
    GROUP_TILINGS,
    TILINGS,
    UNPROMOTED,
    WIDE_FAULTS,
    grouped,
    pair,
)
from tests.support.reports import report_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.core.schedule.tiling import Tiling
from tuner.ops.gemm.quantised import Scheme
from tuner.workers.source.render import render

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: The kernels that are compiled for every change, since each takes some seconds.
_FEW = {"swapped", "two channels exchanged", "plain", "a promotion left out"}


def _some(names: Iterable[str]) -> list[Any]:
    return [name if name in _FEW else pytest.param(name, marks=pytest.mark.soak) for name in names]


def num_bad(workload: Workload, tiling: Tiling, changes: tuple[tuple[str, str], ...] = ()) -> int:
    """Counts the elements of both outputs whose error is larger than rounding explains."""
    chain = EmulatedChain(workload)
    found = chain.run(tiling, plans_of(workload, tiling, is_fused=True), changes)
    wanted = chain.references()
    return sum(int((~(np.abs(found[name] - one.values) <= one.tolerance)).sum()) for name, one in wanted.items())


@pytest.mark.parametrize("tiling", _some(TILINGS))
def test_numbers_are_right(tiling: str) -> None:
    workload = pair(Scheme.TOKEN)
    assert tiling_problem(workload, H200, TILINGS[tiling]) is None
    assert num_bad(workload, TILINGS[tiling]) == 0


@pytest.mark.soak
def test_a_static_factor_takes_no_row_scale() -> None:
    assert num_bad(pair(Scheme.TENSOR), TILINGS["swapped"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", _some(FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    assert num_bad(pair(Scheme.TOKEN), TILINGS["swapped"], (FAULTS[fault],)) > 0


def blocks(m: int = 13) -> Workload:
    """Two groups of columns of the intermediate, and for most tiles more tile rows than one."""
    return pair(Scheme.BLOCK, m=m, d=512, hidden=256)


@pytest.mark.slow
@pytest.mark.parametrize("tiling", _some(BLOCK_TILINGS))
def test_scales_of_blocks_are_applied_and_computed(tiling: str) -> None:
    workload = blocks(77 if tiling.startswith("wide, ") else 13)
    assert tiling_problem(workload, H200, BLOCK_TILINGS[tiling]) is None
    assert num_bad(workload, BLOCK_TILINGS[tiling]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", _some(BLOCK_FAULTS))
def test_a_fault_planted_in_scales_of_blocks_is_found(fault: str) -> None:
    tiling = BLOCK_TILINGS["several lines" if "promotion" in fault else "plain"]
    assert num_bad(blocks(), tiling, (BLOCK_FAULTS[fault],)) > 0


@pytest.mark.parametrize("swap_ab", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_cta_beyond_the_last_group_stores_no_scale(swap_ab: bool) -> None:
    """Two CTAs of a cluster have a group each, and there are three; the fourth would be the next row's first."""
    rows = 16 if swap_ab else 64
    tiling = wgmma((rows, 256, 128), (rows, 128, 128), swap_ab=swap_ab, cluster_n=2)
    workload = pair(Scheme.BLOCK, m=13, d=512, hidden=384)
    assert num_bad(workload, tiling) == 0
    assert num_bad(workload, tiling, (("if constexpr (kClusterN == 1) return true;", "return true;"),)) > 0


# In CI, the faults planted in other scales are found.
@pytest.mark.soak
@pytest.mark.parametrize("fault", _some(WIDE_FAULTS))
def test_a_fault_planted_in_scales_of_wide_blocks_is_found(fault: str) -> None:
    assert num_bad(blocks(), BLOCK_TILINGS["wide"], (WIDE_FAULTS[fault],)) > 0


@pytest.mark.parametrize("tiling", _some(GROUP_TILINGS))
def test_scales_of_groups_alone_are_applied_and_computed_beside_factors_of_rows_and_channels(tiling: str) -> None:
    workload, (_, chosen) = grouped(tiling), GROUP_TILINGS[tiling]
    assert tiling_problem(workload, H200, chosen) is None
    assert num_bad(workload, chosen) == 0


@pytest.mark.parametrize("fault", [pytest.param(name, marks=pytest.mark.soak) for name in GROUP_FAULTS])
def test_a_fault_planted_in_scales_of_groups_alone_is_found(fault: str) -> None:
    tiling, *change = GROUP_FAULTS[fault]
    before, after = change
    assert num_bad(grouped(tiling), GROUP_TILINGS[tiling][1], ((before, after),)) > 0


@pytest.mark.soak
def test_a_groups_scale_comes_after_the_norm_of_its_row() -> None:
    """The first op's rows are normed, in place of a factor for each."""
    up, down = pair(Scheme.TOKEN_GROUPS, m=13, d=512, hidden=256).ops
    workload = Workload(
        kind=WorkloadKind.CHAIN,
        ops=(replace(up, norm="x", row_scale=False), down),  # type: ignore[type-var]
        dtype=Dtype.FP8_E4M3,
    )
    assert num_bad(workload, BLOCK_TILINGS["plain"]) == 0
    assert num_bad(
        workload, BLOCK_TILINGS["plain"], (("if constexpr (kChainOps[kOp].norm) scale[r]", "if (false) scale[r]"),)
    )


@pytest.mark.parametrize("name", ["plain", pytest.param("wide", marks=pytest.mark.soak)])
def test_an_aborted_launch_leaves_no_number_in_place_of_a_scale(name: str) -> None:
    """A tile of NaNs has the scale NaN."""
    workload, tiling = blocks(), BLOCK_TILINGS[name]
    plans = plans_of(workload, tiling, is_fused=True)
    found = EmulatedChain(workload).run(tiling, plans, is_aborted=True)
    whole = EmulatedChain(workload).run(tiling, plans)
    for name, values in found.items():
        is_left = values == (1.0 if name in ("up", "down") else -1.0)
        assert (np.isnan(values) | is_left | (values == whole[name])).all(), name


def worst_share(changes: tuple[tuple[str, str], ...]) -> float:
    """The largest error of sums of 4,096 products of one sign, relative to the bound for 32 truncations of 128 products
    each."""
    workload, tiling = pair(Scheme.TENSOR, m=8, d=4096, hidden=64), TILINGS["swapped"]
    chain = EmulatedChain(workload)
    for name in ("x", "up.w"):
        chain._tensors[name] &= 0x7F
    chain._tensors["up.channel_scale_factors"][:] = 2.0**-5
    chain._tensors["up.output_scale_factor"][:] = 1.0
    changes += (("narrow_two(out[0], out[1])", "narrow_two(sums[0] / 64, sums[1] / 64)"),)
    found = chain.run(tiling, plans_of(workload, tiling, is_fused=True), changes)["up"]
    sums = chain.known(workload.tile_ops[0], "x") @ chain.known(workload.tile_ops[0], "up.weight")[:64].T
    return float((np.abs(found * 64 / sums - 1)).max())


# In CI, a promotion that is left out is found by another test.
@pytest.mark.soak
def test_promoted_sums_keep_what_the_tensor_cores_drop() -> None:
    kept, dropped = worst_share(()), worst_share(UNPROMOTED)
    assert kept <= 2.0**-4 + 132 * 2.0**-13
    assert dropped > 2 * kept


@pytest.mark.parametrize("tiling", _some(BLOCK_TILINGS))
def test_the_compiler_spills_nothing_for_scales_of_blocks(tiling: str) -> None:
    assert report_of(render(blocks(), BLOCK_TILINGS[tiling]), "sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("tiling", _some(GROUP_TILINGS))
def test_the_compiler_spills_nothing_for_scales_of_groups_alone(tiling: str) -> None:
    source = render(grouped(tiling), GROUP_TILINGS[tiling][1])
    assert report_of(source, "sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("tiling", _some(TILINGS))
def test_the_compiler_spills_nothing(tiling: str) -> None:
    arch = "sm_89" if tiling == "simt" else "sm_90a"
    assert report_of(render(pair(Scheme.TOKEN), TILINGS[tiling]), arch).resources.spill_bytes == 0


def test_numbers_of_columns_come_into_the_l2_with_a_tiles_first_weights() -> None:
    """A cold load at the end of a tile takes 0.7 us."""
    source = render(pair(Scheme.TOKEN), TILINGS["swapped"])
    (body,) = re.findall(r"void prefetch_of_columns\(.*?\n}\n", source, re.DOTALL)
    first, second, third = (f"static_cast<const float*>(op.parts[{place}])" for place in (0, 1, 0))
    asked = [f"prefetch_numbers<2>({first}, op.n, column, count)", f"prefetch_l2({second})"]
    asked += [f"prefetch_numbers<1>({third}, op.n, column, count)"]
    assert [line.split(") ", 1)[1].rstrip(";") for line in body.splitlines() if "constexpr" in line] == asked
