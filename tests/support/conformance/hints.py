"""Cache hints affect caching only, never a result."""

from __future__ import annotations

from dataclasses import replace

from tests.support.conformance.case import Case, cross
from tests.support.conformance.schedules import portable, wide
from tests.support.conformance.workloads import RAGGED
from tuner.core.legal.legality import engine_problem, tiling_problem
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint
from tuner.ops.gemm.pairs import ffn_pair

H200 = CATALOGUE["h200"]
#: Copies of 16 bytes, and copies of 2 bytes with an odd column after the last pair, which only one engine can read.
PAIRS = {
    "ragged": RAGGED,
    "odd": ffn_pair(m=50, d_in=77, d_hidden=131, d_out=65, activation=Activation.SILU),
}
SHAPES = {
    "mma": portable(((64, 64, 64), (64, 32, 64))),
    "wgmma": wide(((64, 96, 64), (64, 48, 128))).but(ordering=portable(((64, 96, 64), (64, 48, 128))).ordering),
}


def hinted(name: str, shape: Schedule, workload: Workload) -> dict[str, Schedule]:
    """The tiling with every legal pair of hints."""
    asked = {
        f"{name}, weights {weights}, intermediate {between}": replace(
            shape.tiling, weight_hint=weights, intermediate_hint=between
        )
        for weights in CacheHint
        for between in CacheHint
    }
    return {
        which: shape.but(tiling=tiling)
        for which, tiling in asked.items()
        if tiling_problem(workload, H200, tiling) is None
    }


CASES: list[Case] = [
    case
    for on, workload in PAIRS.items()
    for name, shape in SHAPES.items()
    if not engine_problem(workload, H200, shape.tiling.engine)
    for case in cross(
        "hints",
        "every",
        hinted(name, shape, workload),
        {on: workload},
        kinds=(PlanKind.FUSED, PlanKind.TWO_LAUNCHES),
    )
]
