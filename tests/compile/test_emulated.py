"""Chains of every engine on the CPU, by their own device code: outputs against float64, with nothing there before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.emulated.cases import CASES, Emulated
from tests.support.emulated.chain import ABORT_OFFSET, GUARD_OFFSET, NUM_LAUNCHES, EmulatedChain, plans_of
from tuner.core.proof.verify import VerifiedPlan
from tuner.workers.source.launch_args import mailbox_bytes, workspace_layout
from tuner.workers.source.variants import Variant

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

#: Of a row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}
#: The others are in tests/soak/emulated.py.
FEW = ("mma, parts", "parts, fused", "swapped, shared k", "in band", "in band, parts, tickets")


#: What clears the place of finished elements in the other half of a mailbox.
TAKEN_AWAY = ("*reinterpret_cast<Elements*>(norm.next_mailbox + first) = Elements{};", "")


def mailboxes_of(plan: VerifiedPlan) -> tuple[int, int]:
    """Where they begin in the workspace, and where they end."""
    end = workspace_layout(plan)["slots"]
    return end - mailbox_bytes(plan.graph.workload), end


def halves_from(begin: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Where each half of mailboxes of these sizes begins, and its bytes: those of one follow each other."""
    for size in sizes:
        for _ in range(2):
            yield begin, size
            begin += -(-size // 256) * 256


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


@pytest.mark.parametrize(("change", "leaves_zeros"), [((), True), ((TAKEN_AWAY,), False)])
def test_a_launch_leaves_zeros_where_the_next_one_writes(
    change: tuple[tuple[str, str], ...], leaves_zeros: bool
) -> None:
    """The two launches of a run write a half of each mailbox each, and the second one is what the first began with."""
    case = CASES["in band"]
    chain = EmulatedChain(case.workload)
    (plan,) = plans_of(case.workload, case.tiling, case.ordering, is_fused=True)
    assert chain.worst_row(chain.run(case.tiling, [plan], change)) < MOST["fp16"]
    begin, end = mailboxes_of(plan)
    halves = [
        chain.workspaces[0][at : at + size].view(np.uint32)
        for at, size in halves_from(begin, [op.m * op.n * 2 for op in case.workload.ops[:-1]])
    ]
    assert begin + 2 * sum(-(-half.nbytes // 256) * 256 for half in halves[::2]) == end
    for of_first, of_second in zip(halves[::2], halves[1::2], strict=True):
        assert of_second.all(), "all elements of the last launch are there"
        assert bool(of_first.any()) != leaves_zeros


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return eight.x != 0 && eight.y != 0 && eight.z != 0 && eight.w != 0;", "return true;"),
        ("unit = across(number) % 8 ^ row % 8;", "unit = across(number) % 8;"),
    ],
)
def test_a_broken_reader_in_band_shows(before: str, after: str) -> None:
    assert not worst_row(CASES["in band"], (before, after)) < MOST["fp16"]


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
