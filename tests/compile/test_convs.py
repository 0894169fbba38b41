"""Convolutions by their own device code: on the CPU against their reference, and compiled for cards."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.compiled import compile_source
from tests.support.convs import conv, product, tiling, workload
from tests.support.emulated.chain import EmulatedChain, plans_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.workers.builder.nvrtc import parse_log
from tuner.workers.source.render import render
from tuner.workers.source.variants import Variant

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
#: Of a row: a few roundings of an output.
MOST = {"fp16": 2e-3, "bf16": 8e-3}

SHORTCUT = (
    workload(
        conv("a", stride=2, height=13, width=11, bias=True, activation="relu"),
        conv("b", "a", channels=24, filters=40, residual_source="r", bias=True, activation="silu"),
    ),
    tiling((16, 32, 32), (32, 32, 64)),
)
CASES: dict[str, tuple[Workload, Tiling]] = {
    "a stride, a shortcut": SHORTCUT,
    "three channels, 7x7 and 5x5": (
        workload(
            conv("a", kernel=7, padding=3, stride=2, channels=3, filters=16, height=9, width=11),
            conv("b", "a", height=5, kernel=5, padding=2, filters=16, residual_source="a", activation="relu"),
            dtype="bf16",
        ),
        tiling((16, 32, 32), (16, 32, 64)),
    ),
    "between products, in parts": (
        workload(product("up", "x", 84, 16, 32), conv("a", "up"), product("down", "a", 84, 16, 24)),
        tiling((16, 32, 32), (16, 32, 32), (16, 32, 32), parts=(1, 3, 1)),
    ),
}


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
    sizes = {"images": 1, "height": 14, "width": 14, "bias": True, "activation": "relu"}
    made = workload(
        conv("a", **sizes, channels=1024, filters=256, kernel=1, padding=0),
        conv("b", "a", **sizes, channels=256, filters=256),
        conv("c", "b", **sizes, channels=256, filters=1024, kernel=1, padding=0, residual_source="x"),
    )
    chosen = tiling((64, 64, 64), (64, 64, 64), (64, 128, 64), parts=(2, 4, 1), num_stages=4)
    cubin, log = compile_source(render(made, chosen, variant=variant), arch)
    assert cubin[:4] == b"\x7fELF"
    assert (parse_log(log).spill_bytes, parse_log(log).warnings) == (0, ())
