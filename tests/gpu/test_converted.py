"""Pairs with converted weights on a GPU: results of our kernels and of the library, and planted faults."""

from __future__ import annotations

import pytest

from tests.support.conformance.launching import OnCard
from tests.support.converted import FAULTS, TILINGS, pair
from tests.support.forged import with_others
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.outcome import Failed, FailureKind
from tuner.ops.gemm.quantised import Scheme
from tuner.workers.source.render import render

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
    workload, schedule = pair(TILINGS[tiling][0]), chosen(tiling)
    work = on_card.ready(workload, fused(schedule)).work
    source = render(workload, schedule.tiling)
    assert before in source
    planted = on_card.builder.build(source.replace(before, after), on_card.gpu.arch)
    outcome = on_card.evaluate(workload, with_others(work, cubin=planted.cubin))
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS
