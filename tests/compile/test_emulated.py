"""Chains of every engine on the CPU, by their own device code: outputs against float64, with nothing there before."""

from __future__ import annotations

import shutil

import pytest

from tests.support.emulated.cases import CASES, Emulated
from tests.support.emulated.chain import EmulatedChain, plans_of

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: Of a row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}
#: The others are in tests/soak/emulated.py.
FEW = ("mma, parts", "parts, fused", "swapped, shared k")


def worst_row(case: Emulated, *changes: tuple[str, str]) -> float:
    chain = EmulatedChain(case.workload, is_odd=case.is_odd)
    plans = plans_of(case.workload, case.tiling, case.ordering, is_fused=case.is_fused)
    return chain.worst_row(chain.run(case.tiling, plans, changes))


@pytest.mark.parametrize("name", FEW)
def test_a_chain_leaves_the_right_numbers(name: str) -> None:
    assert worst_row(CASES[name]) < MOST[CASES[name].workload.dtype]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("parts, fused", "sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2)", "sum"),
        ("parts, fused", "mbarrier_wait(shared.beside.ready(feed), feed.parity());", ""),
    ],
)
def test_a_broken_norm_shows(name: str, before: str, after: str) -> None:
    assert not worst_row(CASES[name], (before, after)) < MOST[CASES[name].workload.dtype]
