"""Parts of epilogues on the CPU, by their own device code: each is what it says, and a planted fault is found."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import numpy as np
import pytest

from tests.support.cases import simt, wgmma
from tests.support.emulated.chain import EmulatedChain, plans_of
from tests.support.toys import TOYS
from tuner.core.problem.activation import Activation
from tuner.core.problem.epilogue import PARTS, Part
from tuner.core.problem.rotary import Rotary
from tuner.core.problem.workload import GemmOp, Workload, WorkloadKind
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.workers.source.render import render

sys.path.insert(0, str(TOYS / "parts"))
from toy_parts.column_scale import ColumnScale
from toy_parts.softcap import Softcap

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

M = 5
TURNED = Rotary(heads=2, kv_heads=1, head_dim=64, max_length=37)
#: By the field, or the name, of each part what sets it.
SET: dict[str, dict[str, Any]] = {
    "row_scale": {"row_scale": True},
    "norm": {"norm": "x"},
    "bias": {"bias": True},
    "rotary": {"n": 128, "rotary": TURNED, "bias": True},
    "activation": {"activation": Activation.SILU, "bias": True},
    "gated": {"gated": True, "activation": Activation.SILU, "row_scale": True},
    "residual": {"residual": True, "activation": Activation.SILU},
    "softcap": {"epilogue": (Softcap(cap=1.5),), "gated": True, "activation": Activation.SILU, "residual": True},
    "column_scale": {"epilogue": (ColumnScale(),), "gated": True, "bias": True},
}
ADDED: tuple[Part, ...] = (Softcap(cap=1.5), ColumnScale())
_MMA = Tiling(tiles=(Tile(m=16, n=32, k=64),) * 2, num_stages=3, num_warps=4)
TILINGS = {
    "simt": simt((4, 16, 256), (4, 16, 256), num_warps=4),
    "mma": _MMA,
    "wgmma": wgmma((64, 32, 64), (64, 32, 64)),
    "swapped": wgmma((8, 32, 64), (8, 32, 64), swap_ab=True),
}


def name_of(part: Part) -> str:
    return getattr(part, "name", part.field)


def workload_of(part: Part) -> Workload:
    """An op that has the part, and one of the same tile that has not."""
    shape = {"m": M, "n": 96, "k": 128}
    ops = GemmOp(**{"name": "up", **shape, **SET[name_of(part)]}), GemmOp(name="plain", **shape)
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def num_bad(part: Part, tiling: Tiling, *changes: tuple[str, str]) -> int:
    """How many elements are further from the reference than rounding can explain."""
    workload = workload_of(part)
    chain = EmulatedChain(workload)
    found = chain.run(tiling, plans_of(workload, tiling, is_fused=True), changes)
    bad = {
        name: int((~(np.abs(found[name] - wanted.values) <= wanted.tolerance)).sum())
        for name, wanted in chain.references().items()
    }
    assert bad["plain"] == 0
    return bad["up"]


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("part", [*PARTS, *ADDED], ids=name_of)
def test_a_kernel_does_what_the_part_says(part: Part, tiling: str) -> None:
    assert num_bad(part, TILINGS[tiling]) == 0


@pytest.mark.parametrize("tiling", ["mma", "swapped"])
@pytest.mark.parametrize("part", [*PARTS, *ADDED], ids=name_of)
def test_a_planted_fault_is_found(part: Part, tiling: str) -> None:
    assert num_bad(part, TILINGS[tiling], part.planted) > 0


def test_a_kernel_without_parts_of_packages_says_nothing_of_them() -> None:
    for part in PARTS:
        source = render(workload_of(part), _MMA)
        assert "Softcap" not in source
        assert "define TUNER_PARTS" not in source
