"""Workloads for each epilogue part: the built-in ones, and a package's toys."""

from __future__ import annotations

import sys
from typing import Any

from tests.support.cases import simt, wgmma
from tests.support.toys import TOYS
from tuner.core.problem.activation import Activation
from tuner.core.problem.epilogue import PARTS, Part
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.ops.gemm.op import GemmOp

sys.path.insert(0, str(TOYS / "parts"))
from toy_parts.column_scale import ColumnScale
from toy_parts.outer import Outer
from toy_parts.softcap import Softcap

M = 5
TURNED = Rotary(heads=2, kv_heads=1, head_dim=64, max_length=37)
#: The options that enable each part, by its field or name.
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
    "outer": {"epilogue": (Outer(), Softcap(cap=1.5)), "activation": Activation.SILU, "residual": True},
}
ALL: tuple[Part, ...] = (*PARTS, Softcap(cap=1.5), ColumnScale(), Outer())
MMA = Tiling(tiles=(Tile(m=16, n=32, k=64),) * 2, num_stages=3, num_warps=4)
TILINGS = {
    "simt": simt((4, 16, 256), (4, 16, 256), num_warps=4),
    "mma": MMA,
    "wgmma": wgmma((64, 32, 64), (64, 32, 64)),
    "swapped": wgmma((8, 64, 64), (8, 64, 64), swap_ab=True),
}


def name_of(part: Part) -> str:
    return getattr(part, "name", part.field)


def workload_of(part: Part) -> Workload:
    """An op that has the part, and one of the same tile without it."""
    shape = {"m": M, "n": 96, "k": 128}
    ops = GemmOp(**{"name": "up", **shape, **SET[name_of(part)]}), GemmOp(name="plain", **shape)
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)
