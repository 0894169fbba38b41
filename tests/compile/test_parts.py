"""Epilogue parts run on the CPU from their device code: each is correct, and a planted fault is detected."""

from __future__ import annotations

import shutil
from itertools import product

import numpy as np
import pytest

from tests.support.cases import H200
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.lanes import each_value_once, soak_unless
from tests.support.parts import ALL, MMA, TILINGS, name_of, workload_of
from tuner.core.legal.legality import tiling_problem
from tuner.core.problem.epilogue import PARTS, Part
from tuner.core.schedule.tiling import Tiling
from tuner.workers.source.render import render

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def num_bad(part: Part, tiling: Tiling, *changes: tuple[str, str]) -> int:
    """Counts the elements whose error is larger than rounding explains."""
    workload = workload_of(part)
    chain = EmulatedChain(workload)
    found = chain.run(tiling, plans_of(workload, tiling, is_fused=True), changes)
    bad = {
        name: int((~(np.abs(found[name] - wanted.values) <= wanted.tolerance)).sum())
        for name, wanted in chain.references().items()
    }
    assert bad["plain"] == 0
    return bad["up"]


@pytest.mark.parametrize(
    ("part", "tiling"),
    each_value_once(ALL, [*TILINGS]),
    ids=lambda one: one if isinstance(one, str) else name_of(one),
)
def test_a_kernel_does_what_the_part_says(part: Part, tiling: str) -> None:
    assert num_bad(part, TILINGS[tiling]) == 0


@pytest.mark.parametrize(
    ("part", "tiling"),
    soak_unless(lambda place, _: place in (7, 16), product(ALL, ("mma", "swapped"))),
    ids=lambda one: one if isinstance(one, str) else name_of(one),
)
def test_a_planted_fault_is_found(part: Part, tiling: str) -> None:
    assert num_bad(part, TILINGS[tiling], part.planted) > 0


def test_a_kernel_without_parts_of_packages_says_nothing_of_them() -> None:
    for part in PARTS:
        source = render(workload_of(part), MMA)
        assert "Softcap" not in source
        assert "define TUNER_PARTS" not in source


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("part", ALL, ids=name_of)
def test_each_case_is_legal(part: Part, tiling: str) -> None:
    assert tiling_problem(workload_of(part), H200, TILINGS[tiling]) is None
