"""Device code of convolutions: compared with a reference on the CPU, and compiled for GPUs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.convs import BY_WARPGROUPS, CASES, SHORTCUT, bottleneck, pooling, product, workload
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.lanes import one_in
from tests.support.reports import report_of
from tuner.workers.source.render import render
from tuner.workers.source.variants import Variant

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
ALL = CASES | {f"wgmma, {name}": case for name, case in BY_WARPGROUPS.items()}
#: Tolerance per row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}


@needs_gcc
@pytest.mark.parametrize("name", one_in(2, ALL))
def test_fused_and_apart_it_leaves_what_a_convolution_is(name: str) -> None:
    made, chosen = ALL[name]
    for is_fused in (True, False):
        emulated = EmulatedChain(made)
        got = emulated.run(chosen, plans_of(made, chosen, is_fused=is_fused))
        assert emulated.worst_row(got) < MOST[made.dtype]
        for op, reference in emulated.references().items():
            assert (np.abs(got[op] - reference.values) <= reference.tolerance).all()


@needs_gcc
@pytest.mark.parametrize(
    ("right", "wrong"),
    one_in(
        3,
        [
            ("(y) < kHeight", "(y) < kHeight + (row.pixel < kHeight * kWidth)"),
            ("% kOutHeight * kStride - kPadding, x", "% kOutHeight - kPadding, x"),
            ("sums[c] + residual[c]", "sums[c]"),
        ],
    ),
    ids=["padding of the neighbour", "a wrong stride", "no shortcut"],
)
def test_a_fault_of_the_device_code_shows(right: str, wrong: str) -> None:
    made, chosen = SHORTCUT
    emulated = EmulatedChain(made)
    got = emulated.run(chosen, plans_of(made, chosen, is_fused=True), ((right, wrong),))
    worst = max(
        float((np.abs(got[op] - reference.values) / reference.tolerance).max())
        for op, reference in emulated.references().items()
    )
    assert worst > 10


@needs_gcc
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("one > made[c]", "one < made[c]"), ("x_in >= kImageWidth", "x_in > kImageWidth")],
    ids=["the minimum", "padding of the neighbour"],
)
def test_a_fault_of_a_maximum_shows(right: str, wrong: str) -> None:
    made, chosen = CASES["the maximum behind a product"]
    padded = workload(product("up", "x", 98, 32, 32), pooling("a", "up", width=7, channels=32), dtype="bf16")
    for one in (made, padded) if "one" in right else (padded,):
        emulated = EmulatedChain(one)
        got = emulated.run(chosen, plans_of(one, chosen, is_fused=True), ((right, wrong),))
        assert emulated.worst_row(got) > 0.1


@needs_gcc
def test_a_walk_that_begins_elsewhere_shows() -> None:
    made, chosen = BY_WARPGROUPS["a stride, a shortcut"]
    emulated = EmulatedChain(made)
    wrong = (("line % kOutHeight * kStride", "line % kOutHeight"),)
    assert emulated.worst_row(emulated.run(chosen, plans_of(made, chosen, is_fused=True), wrong)) > 0.1


COMPILED = {
    "sm_80": (*bottleneck(), Variant.MEASURED),
    "sm_90a": (*bottleneck(), Variant.GUARDED),
    **{f"sm_90a, {name}": (*case, Variant.MEASURED) for name, case in BY_WARPGROUPS.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(2, COMPILED))
def test_it_compiles_without_spills(name: str) -> None:
    (made, chosen, variant), arch = COMPILED[name], name.partition(",")[0]
    resources = report_of(render(made, chosen, variant=variant), arch).resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())
