"""Epilogue parts on a GPU, including a package's: results of our kernels and of the library, and planted faults."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.conformance.launching import OnCard
from tests.support.parts import ALL, TILINGS, name_of, workload_of
from tests.support.toys import install
from tuner.core.problem.epilogue import Part
from tuner.core.schedule.candidate import LIBRARY, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine

pytest.importorskip("cupy")
sys.path.insert(
    0, str(install("parts", Path(tempfile.mkdtemp())))
)  # found through the package's metadata when kernels are compiled


def chosen(tiling: str) -> Schedule:
    return Schedule.of(tiling=TILINGS[tiling], ordering=Ordering(rasters=(Raster(), Raster())))


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("part", ALL, ids=name_of)
def test_every_number_is_right(on_card: OnCard, part: Part, tiling: str) -> None:
    if TILINGS[tiling].engine is Engine.WGMMA and on_card.gpu.compute_capability != (9, 0):
        pytest.skip(f"{on_card.gpu.name} has no wgmma")
    assert on_card.measured(workload_of(part), fused(chosen(tiling))).time_us > 0


@pytest.mark.parametrize("part", ALL, ids=name_of)
def test_the_library_is_right(on_card: OnCard, part: Part) -> None:
    assert on_card.measured(workload_of(part), LIBRARY).time_us > 0


@pytest.mark.parametrize("part", ALL, ids=name_of)
def test_a_planted_fault_is_found(on_card: OnCard, part: Part) -> None:
    on_card.assert_finds(*part.planted, workload_of(part), chosen("mma"))
