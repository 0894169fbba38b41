"""Split tiles: correct results, the same bits in every launch, and one post for each tile."""

from __future__ import annotations

from dataclasses import replace

from tests.support.conformance.case import OURS, Case, Claim, cross
from tests.support.conformance.mma import ERROR_BELOW
from tests.support.conformance.schedules import portable
from tests.support.conformance.workloads import apart, by_dtype
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.ops.gemm.pairs import ffn_pair

#: k-steps of 64: 8 and 17, the last one ragged in both.
RAGGED = ffn_pair(m=37, d_in=500, d_hidden=1084, d_out=200, activation=Activation.SILU, bias=True)
TILES = ((16, 64, 64), (16, 64, 64))
QUEUES_AND_TICKETS = (Assignment.STATIC, Assignment.TICKET)


def chosen(split: tuple[int, ...], assignment: Assignment = Assignment.TICKET, **changes: object) -> Schedule:
    return portable(TILES, split=split, assignment=assignment, **changes)  # type: ignore[arg-type]


def parts() -> list[Case]:
    shapes = {
        f"{split}, {assigned}": chosen(split, assigned)
        for split in ((1, 2), (3, 1), (2, 3), (4, 8), (8, 16))
        for assigned in QUEUES_AND_TICKETS
    }
    return [
        case
        for name, workload in by_dtype(RAGGED).items()
        for case in cross("split", "parts", shapes, {name: workload}, error_below=ERROR_BELOW[workload.dtype])
    ]


def epilogues() -> dict[str, Workload]:
    """Plain epilogues with a bias, and a gate and a row scale in the first op with a residual in the second."""
    workloads = {}
    for activation in Activation:
        plain = ffn_pair(m=50, d_in=272, d_hidden=528, d_out=72, activation=activation, bias=True)
        up, down = plain.tile_ops
        workloads[str(activation)] = plain
        workloads[f"{activation}, gated"] = replace(
            plain, ops=(replace(up, gated=True, row_scale=True), replace(down, residual=True))
        )
    return workloads


def own_columns() -> dict[str, Schedule]:
    """Finer signals let parts start before the rest of their row is ready."""
    syncs = (
        (Granularity.TILE, 1),
        (Granularity.CHUNK, 2),
        (Granularity.CHUNK, 8),
        (Granularity.STRIDED, 2),
        (Granularity.BARRIER, 1),
    )
    return {
        f"{granularity}{width}, {assigned}": chosen((1, 4), assigned, granularity=granularity, sync_width=width)
        for granularity, width in syncs
        for assigned in QUEUES_AND_TICKETS
    }


def strides() -> dict[str, Schedule]:
    """8 and 17 k-steps: parts with equal and unequal numbers of them, with the ragged last step in any part."""
    syncs = ((Granularity.TILE, 1), (Granularity.CHUNK, 4), (Granularity.STRIDED, 3))
    return {
        f"{split}, {assigned}, waits by {position}, {granularity}{width}": chosen(
            split,
            assigned,
            split_order=SplitOrder.STRIDED,
            wait_position=position,
            granularity=granularity,
            sync_width=width,
        )
        for split in ((1, 2), (3, 4), (4, 16))
        for position in WaitPosition
        for assigned in QUEUES_AND_TICKETS
        for granularity, width in syncs
    }


#: Rows that are copied element by element.
ODD = ffn_pair(m=33, d_in=131, d_hidden=263, d_out=67, activation=Activation.GELU, bias=True)
STRIDED = portable(((16, 64, 32), (16, 32, 32)), split=(2, 3), split_order=SplitOrder.STRIDED)
WIDE = {
    f"{up} and {down} rows": portable(((up, 128, 64), (down, 256, 64)), warps=8, split=(2, 4))
    for up, down in ((128, 64), (64, 128))
}

#: 4 x 16 and 4 x 5 tiles of 64 x 64: With 9 CTAs, the tail has 3 tiles for the fused launch, and 1 and 2 for the
#: separate ops; with 3 and 6 CTAs, it has 1 and 2. With 11 CTAs, it has 7, 9 and 9 tiles, which do not divide evenly.
EVEN = ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU, bias=True)
#: The ops have 32 and 9 tiles of 32 columns.
THREE_ROWS = ffn_pair(m=3, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU)
SQUARE, TALL, LOW = (Tile(m=m, n=n, k=k) for m, n, k in ((64, 64, 64), (128, 64, 64), (4, 32, 256)))
WGMMA = Tiling(engine=Engine.WGMMA, tiles=(SQUARE, SQUARE), num_stages=4, input_stages=3, num_warps=4, split_k=(2, 3))
#: A tiling for each engine, and the number of SMs for its CTAs.
TAILED: dict[str, tuple[Workload, Tiling, int]] = {
    "mma": (EVEN, Tiling(tiles=(SQUARE, SQUARE), num_stages=3, num_warps=4, split_k=(2, 3)), 9),
    "wgmma": (EVEN, WGMMA, 9),
    "wgmma, clusters": (EVEN, replace(WGMMA, tiles=(TALL, TALL), cluster_m=2), 18),
    "simt": (THREE_ROWS, Tiling(engine=Engine.SIMT, tiles=(LOW, LOW), num_stages=3, num_warps=8, split_k=(2, 2)), 9),
}
ASSIGNMENTS = (
    *((Assignment.STATIC, partition, tiles) for partition in (0, 3) for tiles in (SplitTiles.TAIL, SplitTiles.STREAM)),
    (Assignment.TICKET, 0, SplitTiles.TAIL),
)


def tailed(shape: str, assignment: Assignment, partition: int, split_tiles: SplitTiles) -> tuple[Schedule, int]:
    """A schedule that splits only the few tiles of the last wave, and the number of SMs for which it does."""
    _, tiling, num_sms = TAILED[shape]
    ordering = portable(TILES, assignment=assignment, partition=partition).ordering
    schedule = Schedule.of(tiling=tiling, ordering=replace(ordering, split_tiles=split_tiles))
    return schedule, num_sms + 2 * tiling.cluster_size * (split_tiles is SplitTiles.STREAM)


def tails() -> list[Case]:
    cases: list[Case] = []
    for shape, (workload, _, _) in TAILED.items():
        for assigned in ASSIGNMENTS:
            schedule, num_sms = tailed(shape, *assigned)
            name = f"{shape}, {' '.join(map(str, assigned))}"
            cases += cross("split", "tails", {name: schedule}, {"tail": workload}, kinds=OURS, num_sms=num_sms)
        for assigned in ((Assignment.TICKET, 0, SplitTiles.TAIL), (Assignment.STATIC, 0, SplitTiles.STREAM)):
            schedule, num_sms = tailed(shape, *assigned)
            cases += cross(
                "split",
                "tails",
                {f"{shape}, {assigned[0]} {assigned[2]}": schedule},
                {"tail": workload},
                claim=Claim.ARRIVALS,
                num_launches=100,
                num_sms=num_sms,
            )
    return cases


def even_shares() -> list[Case]:
    """Fewer tiles than CTAs, of unequal depth: each is split wherever a CTA's share ends."""
    cases: list[Case] = []
    for shape in ("mma", "wgmma", "simt"):
        workload, tiling, _ = TAILED[shape]
        one, other = workload.tile_ops
        pair = apart((one.m, one.n, one.k), (min(136, one.m), other.n, 2 * other.k))
        tiling = replace(tiling, split_k=(3, 4) if shape != "simt" else (3, 8))
        shares, _ = tailed(shape, Assignment.STATIC, 0, SplitTiles.STREAM)
        for kind in (InterleaveKind.PRODUCER_FIRST, InterleaveKind.PROPORTIONAL):
            ordering = replace(shares.ordering, interleave=Interleave(kind=kind))
            cases += cross("split", "shares", {f"{shape}, {kind}": Schedule.of(tiling=tiling, ordering=ordering)}, pair)
    return cases


def again() -> dict[str, Schedule]:
    """The result does not depend on which part arrives last: there are enough launches to get different orders."""
    return {
        f"(4, 8), {assigned}, {order}": chosen((4, 8), assigned, split_order=order)
        for assigned in QUEUES_AND_TICKETS
        for order in SplitOrder
    }


CASES = [
    *parts(),
    *cross(
        "split", "epilogues", {"32 rows": portable(((32, 64, 32), (32, 32, 32)), stages=4, split=(2, 3))}, epilogues()
    ),
    *cross("split", "own columns", own_columns(), {"48 rows": ffn_pair(m=48, d_in=512, d_hidden=2048, d_out=512)}),
    *cross("split", "strides", strides(), {"ragged": RAGGED}),
    *cross("split", "strides", {"element by element": STRIDED}, {"odd": ODD}),
    *cross("split", "wide", WIDE, {"300 rows": ffn_pair(m=300, d_in=512, d_hidden=1152, d_out=640)}),
    *cross(
        "split",
        "kinds",
        {str(order): chosen((2, 4), Assignment.STATIC, split_order=order) for order in SplitOrder},
        {"ragged": RAGGED},
        kinds=OURS,
    ),
    *tails(),
    *even_shares(),
    *cross("split", "again", again(), {"ragged": RAGGED}, claim=Claim.RELAUNCHES, num_launches=200),
    *cross(
        "split",
        "posts",
        {"(4, 8)": chosen((4, 8))},
        {"ragged": RAGGED},
        claim=Claim.ARRIVALS,
        num_launches=3,
        num_posts=17,  # the first op has 17 consecutive tiles
    ),
]
