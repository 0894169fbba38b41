"""A decoder block of 8-bit operands with a 16-bit residual stream, on a GPU."""

from __future__ import annotations

import pytest

from tests.support.cases import wgmma
from tests.support.conformance.launching import OnCard
from tests.support.forged import with_others
from tests.support.operands import FAULTS, GROUP_FAULTS, GROUPED, OTHERS, SWAPPED, block
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.workers.source.render import render

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
    assert_found(on_card, block(), SWAPPED, FAULTS[fault])


@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_fault_planted_in_scales_of_groups_is_found(on_card: OnCard, fault: str) -> None:
    form, *change = GROUP_FAULTS[fault]
    assert_found(on_card, block(13, weights="e4m3_g128"), GROUPED[form], (change[0], change[1]))


def assert_found(on_card: OnCard, workload: Workload, tiling: Tiling, change: tuple[str, str]) -> None:
    """Plants a fault in the source of a kernel, which must then be told to be wrong."""
    schedule, (before, after) = chosen(tiling), change
    work = on_card.ready(workload, fused(schedule)).work
    source = render(workload, schedule.tiling)
    assert before in source
    planted = on_card.builder.build(source.replace(before, after), on_card.gpu.arch)
    outcome = on_card.evaluate(workload, with_others(work, cubin=planted.cubin))
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS
