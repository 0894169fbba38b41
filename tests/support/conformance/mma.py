"""The portable engine: every shape, dtype, activation and ordering."""

from __future__ import annotations

import random

from tests.support.cases import SYNCS_BY_NAME
from tests.support.conformance.case import Case, cross
from tests.support.conformance.schedules import portable
from tests.support.conformance.workloads import apart, by_dtype
from tests.support.covering import covering_sample
from tests.support.spaces import space_of
from tuner.core.problem.dtype import UNSCALED
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.core.schedule.ordering import Interleave, InterleaveKind, Ordering, Raster, RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.ordering_values import SYNCS
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair

SHAPES = [
    (1, 1, 1, 1),
    (1, 64, 96, 32),
    (16, 512, 1024, 256),
    (17, 100, 203, 77),
    (37, 129, 31, 257),
    (64, 66, 130, 34),
    (200, 256, 384, 320),
    (333, 36, 500, 44),
]
#: Relative errors of a sum in float32, rounded to the element type.
ERROR_BELOW = {Dtype.FP16: 2e-3, Dtype.BF16: 1.6e-2}
ORDERED = ffn_pair(m=640, d_in=512, d_hidden=1024, d_out=768, activation=Activation.SILU)
THREE_OPS = Workload(
    kind=WorkloadKind.CHAIN,
    ops=(
        GemmOp(name="a", m=100, n=256, k=128, activation=Activation.RELU),
        GemmOp(name="b", m=100, n=192, k=256, source="a", activation=Activation.SILU),
        GemmOp(name="c", m=100, n=320, k=192, source="b"),
    ),
)


def shapes() -> list[Case]:
    cases: list[Case] = []
    for m, d_in, d_hidden, d_out in SHAPES:
        tile_m = 16 if m <= 16 else 64
        chosen = {f"{tile_m} rows": portable(((tile_m, 64, 64), (tile_m, 64, 64)))}
        plain = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, activation=Activation.RELU)
        for dtype, workload in by_dtype(plain).items():
            on = {f"{m}x{d_in}x{d_hidden}x{d_out}, {dtype}": workload}
            below = 0.0 if d_out == 1 else ERROR_BELOW[workload.dtype]  # a single product may be exact
            kinds = (PlanKind.FUSED, PlanKind.TWO_LAUNCHES)
            cases += cross("mma", "shapes", chosen, on, kinds=kinds, error_below=below)
    return cases


def epilogues() -> dict[str, Workload]:
    return {
        f"{activation}{', bias' if bias else ''}, {dtype}": ffn_pair(
            m=50, d_in=136, d_hidden=264, d_out=72, dtype=dtype, activation=activation, bias=bias
        )
        for activation in Activation
        for bias in (False, True)
        for dtype in UNSCALED
    }


def orderings() -> dict[str, Schedule]:
    """A pairwise covering sample of the legal orderings of one tiling."""
    tiling = portable(((64, 64, 64), (64, 64, 64))).tiling

    def axes(ordering: Ordering) -> list[str]:
        rasters = [str(raster) for raster in ordering.rasters]
        grid = f"{ordering.ctas_per_sm} {ordering.reserved_sms}"
        sync, assigned = f"{ordering.granularity}{ordering.sync_width}", f"{ordering.assignment} {ordering.partition}"
        return [*rasters, str(ordering.interleave), sync, assigned, grid]

    legal = space_of(ORDERED, CATALOGUE["h200"]).orderings(tiling)
    rng = random.Random(0)
    drawn = [legal[legal.draw(rng)] for _ in range(3000)]
    return {str(one): Schedule.of(tiling=tiling, ordering=one) for one in covering_sample(drawn, axes)}


def unequal_heights() -> dict[str, Schedule]:
    return {
        f"{up} and {down} rows, {granularity}{width}": portable(
            ((up, 64, 64), (down, columns, 32)), granularity=granularity, sync_width=width, warps=8
        )
        for up, down, columns in ((128, 64, 128), (64, 128, 128), (128, 192, 64), (64, 192, 64))
        for granularity, width in (*SYNCS, *SYNCS_BY_NAME)
    }


def three_ops() -> dict[str, Schedule]:
    tiles = ((32, 64, 64), (64, 64, 64), (32, 64, 64))
    bands = Interleave(kind=InterleaveKind.BANDS, rows=1)
    return {"op by op": portable(tiles), "bands": portable(tiles, interleave=bands)}


EXACT = portable(((64, 64, 64), (64, 64, 64)), rasters=(Raster(kind=RasterKind.EXACT, width=4),) * 2)
CASES = [
    *shapes(),
    *cross(
        "mma",
        "epilogues",
        {"32 rows": portable(((32, 64, 32), (32, 32, 32)), stages=4)},
        epilogues(),
    ),
    *cross("mma", "orderings", orderings(), {"640 rows": ORDERED}),
    *cross(
        "mma", "unequal heights", unequal_heights(), {"700 rows": ffn_pair(m=700, d_in=256, d_hidden=640, d_out=320)}
    ),
    *cross("mma", "exact path", {"64 rows": EXACT}, {"192 rows": ffn_pair(m=192, d_in=256, d_hidden=256, d_out=256)}),
    *cross(
        "mma",
        "workloads",
        {"64 and 32 rows": portable(((64, 64, 64), (32, 64, 64)))},
        apart((64, 512, 512), (64, 128, 512)),
    ),
    *cross("mma", "workloads", three_ops(), {"three ops": THREE_OPS}),
]
