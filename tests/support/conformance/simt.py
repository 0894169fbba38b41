"""The CUDA-core engine: every tile shape, edge, option and launch mode."""

from __future__ import annotations

from tests.support.conformance.case import OTHERS, SIGNALLING, Claim, cross, named
from tests.support.conformance.schedules import ASSIGNMENTS, BY_SLICE, TICKET, dots
from tests.support.conformance.workloads import (
    EVERY_OPTION,
    GATED,
    LOW,
    RESIDUAL,
    SCALED,
    apart,
    by_dtype,
    by_options,
    by_rows,
    chain_of_three,
)
from tuner.core.problem.workload import Activation
from tuner.core.schedule.ordering import Granularity, Raster, RasterKind, SplitOrder
from tuner.core.schedule.tiling import CacheHint
from tuner.ops.gemm.pairs import ffn_pair

#: 4 rows in tiles of 4 and of 2: the first op's single row of tiles has only one order.
BY_COLUMN = (Raster(), Raster(kind=RasterKind.COLUMN))
TICKETS = {"assignment": TICKET}
SHAPES = {
    "one row": dots((1, 32, 256), (1, 16, 512)),
    "one row, a column a warp": dots((1, 8, 256), (1, 4, 256), num_warps=4),
    "one row, wide": dots((1, 128, 256), (1, 104, 256), num_stages=2),
    "one row, deep": dots((1, 16, 1024), num_stages=4),
    "two rows, tickets": dots((2, 64, 256), (2, 32, 512), ordering=TICKETS),
    "four rows, split": dots((4, 32, 256), (4, 64, 256), split_k=(2, 3)),
    "four rows, split, tickets": dots((4, 16, 256), (4, 8, 256), num_warps=4, split_k=(1, 4), ordering=TICKETS),
    "one row, split": dots((1, 32, 256), split_k=(3, 2), ordering={"granularity": Granularity.TILE}),
    "slices": dots((4, 32, 256), ordering=BY_SLICE),
    "strided parts": dots((1, 32, 256), split_k=(3, 4), ordering={"split_order": SplitOrder.STRIDED}),
    "strided parts by slice, tickets": dots(
        (4, 32, 256), split_k=(2, 3), ordering={**BY_SLICE, "split_order": SplitOrder.STRIDED, **TICKETS}
    ),
    "unequal rows": dots((4, 32, 256), (2, 64, 256), ordering={"rasters": BY_COLUMN}),
    "two on an SM": dots((1, 8, 256), (1, 8, 256), num_stages=2, resident_ctas=2, ordering={"ctas_per_sm": 2}),
    "hints": dots((2, 32, 256), weight_hint=CacheHint.NORMAL, intermediate_hint=CacheHint.EVICT_LAST),
}
SPLITS = named(
    SHAPES, "four rows, split", "four rows, split, tickets", "one row, split", "strided parts by slice, tickets"
)
IDENTITY = ffn_pair(m=4, d_in=2056, d_hidden=3000, d_out=1100)
GELU = ffn_pair(m=1, d_in=1032, d_hidden=1544, d_out=137, activation=Activation.GELU, bias=True)
SMALLEST = {
    "x".join(map(str, shape)): ffn_pair(m=shape[0], d_in=shape[1], d_hidden=shape[2], d_out=shape[3])
    for shape in ((1, 8, 8, 8), (3, 8, 16, 1), (4, 248, 264, 33), (2, 2048, 8, 5))
}
OPTIONED = {
    "four rows": dots((4, 32, 256)),
    "one and two rows": dots((1, 8, 512), (2, 16, 256), num_warps=4),
    "four rows, split": dots((4, 24, 256), split_k=(2, 2)),
}

CASES = [
    *cross("simt", "shapes", SHAPES, by_dtype(LOW)),
    *cross(
        "simt",
        "rows",
        named(SHAPES, "one row", "two rows, tickets", "four rows, split"),
        by_rows(GELU, 1, 2, 3, 4, 5, 9),
    ),
    *cross("simt", "smallest", {"four rows": dots((4, 8, 256))}, SMALLEST),
    *cross(
        "simt",
        "options",
        OPTIONED,
        by_options(
            GATED, EVERY_OPTION, RESIDUAL, SCALED, m=4, d_in=1048, d_hidden=1304, d_out=75, activation=Activation.SILU
        ),
    ),
    *cross(
        "simt",
        "kinds",
        named(SHAPES, "one row", "four rows, split", "two rows, tickets"),
        {"4 rows": LOW},
        kinds=OTHERS,
    ),
    *cross("simt", "kinds", named(SHAPES, "slices"), {"4 rows": LOW}, kinds=SIGNALLING),
    *cross(
        "simt",
        "workloads",
        {"unequal rows": dots((4, 16, 256), (2, 32, 512), (4, 8, 256))},
        {"three ops": chain_of_three(3, (520, 1032, 512, 67))},
    ),
    *cross("simt", "workloads", {"four rows": dots((4, 32, 256))}, apart((4, 512, 1024), (2, 131, 1024))),
    *cross("simt", "again", SPLITS, {"4 rows": IDENTITY}),
    *cross("simt", "again", SPLITS, {"4 rows": IDENTITY}, claim=Claim.RELAUNCHES),
    *cross(
        "simt",
        "first wait",
        {name: dots((4, 32, 256), ordering=assigned) for name, assigned in ASSIGNMENTS.items()},
        {"4 rows": ffn_pair(m=4, d_in=1032, d_hidden=1544, d_out=520)},
        claim=Claim.ABORT,
    ),
    *cross(
        "simt",
        "zip",
        named(SHAPES, "one row", "four rows, split, tickets", "two on an SM"),
        {"4 rows": ffn_pair(m=4, d_in=520, d_hidden=1160, d_out=264, activation=Activation.RELU)},
        claim=Claim.ARTIFACT,
    ),
]
