"""Device code of pairs of convolutions in one CTA: compared with a reference on the CPU, and compiled."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.support.conv_pairs import CASES, pair
from tests.support.emulated.conv_pair import EmulatedPair, worst
from tests.support.lanes import one_in
from tests.support.reports import report_of
from tuner.core.problem.dtype import Dtype
from tuner.ops.conv.pair.numbers import planted
from tuner.ops.conv.pair.rules import resources_of
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.ops.conv.pair.source import source_of

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SMALL = EmulatedPair(pair(height=6, width=7)), ConvPairSchedule(rows=4, columns=4)


@pytest.mark.slow
@needs_gcc
@pytest.mark.parametrize("name", one_in(6, CASES))
def test_it_leaves_what_two_convolutions_are(name: str) -> None:
    op, schedule, dtype = CASES[name]
    assert worst(EmulatedPair(op, dtype), schedule) < 0.3


@needs_gcc
def test_a_cta_goes_on_with_its_next_tile() -> None:
    emulated, schedule = SMALL
    assert emulated.errors(emulated.run(schedule, num_ctas=3)).max() < 0.3


ADDING = EmulatedPair(replace(SMALL[0].op, residual_source="r", filters=128)), SMALL[1]


@needs_gcc
@pytest.mark.parametrize("fault", one_in(4, planted(ADDING[0].op, ADDING[1], Dtype.FP16)))
def test_a_planted_fault_shows(fault: str) -> None:
    emulated, schedule = ADDING
    errors = emulated.errors(emulated.run(schedule, planted(emulated.op, schedule, Dtype.FP16)[fault]))
    assert not errors.max() < 2  # an error may be NaN


@needs_gcc
def test_without_a_fault_an_image_is_added_in_each_tile_of_a_cta() -> None:
    emulated, schedule = ADDING
    assert emulated.errors(emulated.run(schedule, num_ctas=3)).max() < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(2, CASES))
def test_it_compiles_without_spills(name: str) -> None:
    op, schedule, dtype = CASES[name]
    found, said = report_of(source_of(op, schedule, dtype), "sm_90a").resources, resources_of(op, schedule)
    assert (found.spill_bytes, found.static_smem_bytes, found.warnings) == (0, 0, ())
    assert found.registers_per_thread <= said.registers_per_thread
