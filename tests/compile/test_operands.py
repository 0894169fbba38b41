"""Chains of 8-bit operands with a 16-bit residual stream, run on the CPU from their own source."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.cases import H200, wgmma
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.lanes import soak_unless
from tests.support.operands import FAULTS, GROUP_FAULTS, GROUPED, OTHERS, SWAPPED, block
from tests.support.reports import report_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.workers.source.render import render

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def num_bad(workload: Workload, tiling: Tiling, changes: tuple[tuple[str, str], ...] = ()) -> dict[str, int]:
    """The number of elements of each tensor whose error is larger than rounding explains; all of them if the tensor as
    a whole is too far from its reference."""
    assert tiling_problem(workload, H200, tiling) is None
    chain = EmulatedChain(workload)
    found = chain.run(tiling, plans_of(workload, tiling, is_fused=True), changes)
    bad = {}
    for name, one in chain.references().items():
        error = np.abs(found[name] - one.values)
        is_far = np.linalg.norm(error) > workload.dtype.row.max_rel_error * np.linalg.norm(one.values)
        bad[name] = error.size if is_far else int((~(error <= one.tolerance)).sum())
    return bad


def test_every_output_is_right() -> None:
    found = num_bad(block(), SWAPPED)
    assert {"o_proj", "o_proj.operand_values", "gate_up", "down", "down.operand_values", "qkv"} == set(found)
    assert set(found.values()) == {0}


@pytest.mark.soak
@pytest.mark.parametrize("form", OTHERS)
def test_every_output_is_right_in_other_forms(form: str) -> None:
    assert set(num_bad(block(), OTHERS[form]).values()) == {0}


@pytest.mark.soak
def test_an_operand_of_16_bits_has_the_weights_of_a_norm() -> None:
    """The norm's weights cannot be folded into 4-bit weights."""
    workload = block(dtype="bf16", weights="int4_g128")
    assert set(num_bad(workload, wgmma(*[(8, 64, 256)] * 4, swap_ab=True)).values()) == {0}


@pytest.mark.parametrize("weights", ["", "int4_g128_a8"])
def test_sums_are_about_as_large_as_inputs(weights: str) -> None:
    """Smaller ones would be subnormal in 8 bits: they would lose more than rounding takes."""
    chain = EmulatedChain(block(weights=weights))
    sizes = {name: float(np.sqrt((one.values**2).mean())) for name, one in chain.references().items()}
    assert all(1 < size < 15 for size in sizes.values()), sizes


# In CI, tests/unit/core/problem/test_operands.py has the block's form, and tests/compile/test_converted.py the weights.
@pytest.mark.soak
def test_every_output_of_4_bit_weights_is_right_and_a_forgotten_scale_is_found() -> None:
    workload, tiling = block(weights="int4_g128_a8"), wgmma(*[(8, 64, 256)] * 4, swap_ab=True)
    assert set(num_bad(workload, tiling).values()) == {0}
    for fault in ("columns of the operand swapped", "a residual left out"):
        assert sum(num_bad(workload, tiling, (FAULTS[fault],)).values()) > 0
    assert report_of(render(workload, tiling), "sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("fault", soak_unless(lambda number, _: number == 0, FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    assert sum(num_bad(block(), SWAPPED, (FAULTS[fault],)).values()) > 0


def rows_of(form: str) -> int:
    """More than one tile of rows, most of which are full."""
    return 77 if form.startswith("wide") else 13


@pytest.mark.parametrize("form", soak_unless(lambda number, _: number == 0, GROUPED))
def test_every_output_with_scales_of_groups_is_right(form: str) -> None:
    workload, tiling = block(rows_of(form), weights="e4m3_g128"), GROUPED[form]
    found = num_bad(workload, tiling)
    assert {"o_proj.group_operand_values", "o_proj.group_operand_values.group_scale_factors"} < set(found)
    assert set(found.values()) == {0}
    assert report_of(render(workload, tiling), "sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("fault", soak_unless(lambda number, _: number < 2, GROUP_FAULTS))
def test_a_fault_planted_in_scales_of_groups_is_found(fault: str) -> None:
    form, before, after = GROUP_FAULTS[fault]
    assert sum(num_bad(block(13, weights="e4m3_g128"), GROUPED[form], ((before, after),)).values()) > 0


def test_the_compiler_spills_nothing() -> None:
    assert report_of(render(block(), SWAPPED), "sm_90a").resources.spill_bytes == 0
