"""Chains of every engine on the CPU, by their own device code: outputs against float64, with nothing there before."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.emulated.cases import CASES, Emulated
from tests.support.emulated.chain import ABORT_OFFSET, GUARD_OFFSET, NUM_LAUNCHES, EmulatedChain, plans_of
from tuner.workers.source.variants import Variant

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: Of a row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}
#: The others are in tests/soak/emulated.py.
FEW = ("mma, parts", "parts, fused", "swapped, shared k", "in band", "in band, parts, tickets")


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


@pytest.mark.parametrize("num_strangers", [0, 1])
@pytest.mark.parametrize("name", ["mma, parts", "parts, fused"])
def test_a_guarded_build_counts_its_ctas_and_reports_one_of_another_launch(name: str, num_strangers: int) -> None:
    case = CASES[name]
    chain = EmulatedChain(case.workload, is_odd=case.is_odd)
    plans = plans_of(case.workload, case.tiling, case.ordering, is_fused=case.is_fused)
    found = chain.run(case.tiling, plans, variant=Variant.GUARDED, num_strangers=num_strangers)
    for plan, workspace in zip(plans, chain.workspaces, strict=True):
        num_ctas = NUM_LAUNCHES * plan.plan.num_ctas * case.tiling.cluster_size
        (counted,) = workspace[GUARD_OFFSET : GUARD_OFFSET + 8].view(np.uint64)
        assert int(counted) == (num_ctas << 16) + num_strangers, "as many have ended as have started"
        raised, task, *_ = workspace[ABORT_OFFSET : ABORT_OFFSET + 24].view(np.int32)
        assert (raised, task) == ((1, -2) if num_strangers else (0, 0))
    assert (chain.worst_row(found) < MOST[case.workload.dtype]) == (num_strangers == 0)
