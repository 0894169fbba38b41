"""Convolutions by their own device code: on the CPU against their reference, and compiled for cards."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.compiled import compile_source
from tests.support.convs import CASES, SHORTCUT, bottleneck
from tests.support.emulated.chain import EmulatedChain, plans_of
from tuner.workers.builder.nvrtc import parse_log
from tuner.workers.source.render import render
from tuner.workers.source.variants import Variant

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
#: Of a row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}


@needs_gcc
@pytest.mark.parametrize("name", CASES)
def test_fused_and_apart_it_leaves_what_a_convolution_is(name: str) -> None:
    made, chosen = CASES[name]
    for is_fused in (True, False):
        emulated = EmulatedChain(made)
        got = emulated.run(chosen, plans_of(made, chosen, is_fused=is_fused))
        assert emulated.worst_row(got) < MOST[made.dtype]
        for op, reference in emulated.references().items():
            assert (np.abs(got[op] - reference.values) <= reference.tolerance).all()


@needs_gcc
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(y) < kHeight", "(y) < kHeight + (row.pixel < kHeight * kWidth)"),
        ("% kOutHeight * kStride - kPadding, x", "% kOutHeight - kPadding, x"),
        ("sums[c] + residual[c]", "sums[c]"),
    ],
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


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "variant"), [("sm_80", Variant.MEASURED), ("sm_90a", Variant.GUARDED)])
def test_a_bottleneck_compiles_without_spills(arch: str, variant: Variant) -> None:
    made, chosen = bottleneck()
    cubin, log = compile_source(render(made, chosen, variant=variant), arch)
    assert cubin[:4] == b"\x7fELF"
    assert (parse_log(log).spill_bytes, parse_log(log).warnings) == (0, ())
