"""Pairs with converted weights on a GPU: results of our kernels and of the library, and planted faults."""

from __future__ import annotations

import pytest

from tests.support.conformance.launching import OnCard
from tests.support.converted import FAULTS, TILINGS, pair
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.quantised import Scheme

pytest.importorskip("cupy")


def chosen(tiling: str) -> Schedule:
    return Schedule.of(tiling=TILINGS[tiling][1], ordering=Ordering(rasters=(Raster(), Raster())))


@pytest.fixture(autouse=True)
def _of_hopper(on_card: OnCard) -> None:
    if on_card.gpu.compute_capability != (9, 0):
        pytest.skip(f"{on_card.gpu.name} has no wgmma")


@pytest.mark.parametrize("tiling", TILINGS)
def test_every_number_is_right(on_card: OnCard, tiling: str) -> None:
    assert on_card.measured(pair(TILINGS[tiling][0]), fused(chosen(tiling))).time_us > 0


@pytest.mark.parametrize("scheme", [Scheme.W8A16, Scheme.INT4, Scheme.W4A8])
@pytest.mark.parametrize("m", [1, 16])
def test_the_library_is_right(on_card: OnCard, scheme: Scheme, m: int) -> None:
    assert on_card.measured(pair(scheme, m=m), LIBRARY).time_us > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(on_card: OnCard, fault: str) -> None:
    tiling, before, after = FAULTS[fault]
    on_card.assert_finds(before, after, pair(TILINGS[tiling][0]), chosen(tiling))
