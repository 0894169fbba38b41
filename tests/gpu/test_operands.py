"""A decoder block of 8-bit operands with a 16-bit residual stream, on a GPU."""

from __future__ import annotations

import pytest

from tests.support.cases import wgmma
from tests.support.conformance.launching import OnCard
from tests.support.operands import FAULTS, GROUP_FAULTS, GROUPED, OTHERS, SWAPPED, block
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling

pytest.importorskip("cupy")
TILINGS = {"swapped": SWAPPED, **OTHERS}


def chosen(tiling: Tiling) -> Schedule:
    return Schedule.of(tiling=tiling, ordering=Ordering(rasters=(Raster(),) * 4))


@pytest.fixture(autouse=True)
def _of_hopper(on_card: OnCard) -> None:
    if on_card.gpu.compute_capability != (9, 0):
        pytest.skip(f"{on_card.gpu.name} has no wgmma")


@pytest.mark.parametrize("tiling", TILINGS)
def test_every_number_is_right(on_card: OnCard, tiling: str) -> None:
    assert on_card.measured(block(), fused(chosen(TILINGS[tiling]))).time_us > 0


def test_every_number_of_4_bit_weights_is_right(on_card: OnCard) -> None:
    tiling = wgmma(*[(8, 64, 256)] * 4, swap_ab=True)
    assert on_card.measured(block(weights="int4_g128_a8"), fused(chosen(tiling))).time_us > 0


@pytest.mark.parametrize("form", GROUPED)
def test_every_number_with_scales_of_groups_is_right(on_card: OnCard, form: str) -> None:
    workload = block(77 if form.startswith("wide") else 13, weights="e4m3_g128")
    assert on_card.measured(workload, fused(chosen(GROUPED[form]))).time_us > 0


@pytest.mark.parametrize("weights", ["", "int4_g128_a8", "e4m3_g128"])
@pytest.mark.parametrize("m", [1, 16])
def test_the_library_is_right(on_card: OnCard, m: int, weights: str) -> None:
    assert on_card.measured(block(m, weights=weights), LIBRARY).time_us > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(on_card: OnCard, fault: str) -> None:
    on_card.assert_finds(*FAULTS[fault], block(), chosen(SWAPPED))


@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_fault_planted_in_scales_of_groups_is_found(on_card: OnCard, fault: str) -> None:
    form, before, after = GROUP_FAULTS[fault]
    on_card.assert_finds(before, after, block(13, weights="e4m3_g128"), chosen(GROUPED[form]))
