"""Pairs of 8-bit operands on a GPU: results of our kernels and of the library, and planted faults."""

from __future__ import annotations

import pytest

from tests.support.conformance.launching import OnCard
from tests.support.quantised import BLOCK_TILINGS, FAULTS, GROUP_FAULTS, GROUP_TILINGS, TILINGS, grouped, pair
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.quantised import Scheme

pytest.importorskip("cupy")
#: Columns and rows that cuBLASLt multiplies: multiples of 16.
PAIR = pair(Scheme.TOKEN, m=5, d=1024, hidden=768)


BLOCKS = pair(Scheme.BLOCK, m=13, d=1024, hidden=768)


def chosen(tiling: str) -> Schedule:
    return Schedule.of(tiling=TILINGS[tiling], ordering=Ordering(rasters=(Raster(), Raster())))


@pytest.mark.parametrize("tiling", BLOCK_TILINGS)
def test_every_number_is_right_with_scales_of_blocks(on_card: OnCard, tiling: str) -> None:
    schedule = Schedule.of(tiling=BLOCK_TILINGS[tiling], ordering=Ordering(rasters=(Raster(), Raster())))
    assert on_card.measured(BLOCKS, fused(schedule)).time_us > 0


@pytest.mark.parametrize("tiling", GROUP_TILINGS)
def test_every_number_is_right_with_scales_of_groups_alone(on_card: OnCard, tiling: str) -> None:
    workload = grouped(tiling, d=1024, hidden=768)
    schedule = Schedule.of(tiling=GROUP_TILINGS[tiling][1], ordering=Ordering(rasters=(Raster(), Raster())))
    assert on_card.measured(workload, fused(schedule)).time_us > 0


@pytest.fixture(autouse=True)
def _of_hopper(on_card: OnCard) -> None:
    if on_card.gpu.compute_capability != (9, 0):
        pytest.skip(f"{on_card.gpu.name} has no wgmma")


@pytest.mark.parametrize("tiling", TILINGS)
def test_every_number_is_right(on_card: OnCard, tiling: str) -> None:
    assert on_card.measured(PAIR, fused(chosen(tiling))).time_us > 0


@pytest.mark.parametrize("scheme", [Scheme.TENSOR, Scheme.TOKEN, Scheme.TOKEN_GROUPS, Scheme.BLOCK])
@pytest.mark.parametrize("m", [1, 16])
def test_the_library_is_right(on_card: OnCard, scheme: Scheme, m: int) -> None:
    assert on_card.measured(pair(scheme, m=m, d=1024, hidden=768), LIBRARY).time_us > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(on_card: OnCard, fault: str) -> None:
    on_card.assert_finds(*FAULTS[fault], PAIR, chosen("swapped"))


@pytest.mark.parametrize("fault", ["the factor of a row for its neighbour", "inputs' scale of another group, wide"])
def test_a_fault_planted_in_scales_of_groups_alone_is_found(on_card: OnCard, fault: str) -> None:
    tiling, before, after = GROUP_FAULTS[fault]
    schedule = Schedule.of(tiling=GROUP_TILINGS[tiling][1], ordering=Ordering(rasters=(Raster(), Raster())))
    on_card.assert_finds(before, after, grouped(tiling, d=1024, hidden=768), schedule)
