"""The generated kernel on a card: every shape, dtype, activation and ordering gives the right numbers."""

from __future__ import annotations

import random

import pytest

from tests.support.covering import covering_sample
from tests.support.on_card import fused, problem, run, schedule
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Activation, Dtype, GemmOp, Workload, WorkloadKind, ffn_pair, independent_pair
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Interleave, InterleaveKind, Ordering, Raster, RasterKind, Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.ordering_values import SYNCS
from tuner.core.space.space import Space
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

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


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_right(
    session: Session, builder: Builder, gpu: Gpu, shape: tuple[int, int, int, int], dtype: Dtype
) -> None:
    m, d_in, d_hidden, d_out = shape
    asked = problem(ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out, dtype=dtype, activation=Activation.RELU))
    tile_m = 16 if m <= 16 else 64
    chosen = schedule(((tile_m, 64, 64), (tile_m, 64, 64)))
    for kind in (PlanKind.FUSED, PlanKind.TWO_LAUNCHES):
        measured = run(session, builder, gpu, asked, Candidate(plan_kind=kind, schedule=chosen))
        assert 0 < measured.rel_error < (2e-3 if dtype is Dtype.FP16 else 1.6e-2) or shape == (1, 1, 1, 1)
        assert measured.time_us > 0


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("bias", [False, True])
def test_every_epilogue_is_right(
    session: Session, builder: Builder, gpu: Gpu, activation: Activation, bias: bool
) -> None:
    for dtype in Dtype:
        asked = problem(ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, dtype=dtype, activation=activation, bias=bias))
        run(session, builder, gpu, asked, fused(schedule(((32, 64, 32), (32, 32, 32)), stages=4)))


ORDERED = ffn_pair(m=640, d_in=512, d_hidden=1024, d_out=768, activation=Activation.SILU)


def orderings() -> list[Schedule]:
    """A pairwise covering sample of the legal orderings of one tiling."""
    tiling = schedule(((64, 64, 64), (64, 64, 64))).tiling

    def axes(ordering: Ordering) -> list[str]:
        rasters = [str(raster) for raster in ordering.rasters]
        grid = f"{ordering.ctas_per_sm} {ordering.reserved_sms}"
        sync, assigned = f"{ordering.granularity}{ordering.sync_width}", f"{ordering.assignment} {ordering.partition}"
        return [*rasters, str(ordering.interleave), sync, assigned, grid]

    legal = Space(ORDERED, CATALOGUE["h200"]).orderings(tiling)
    rng = random.Random(0)
    drawn = [legal[legal.draw(rng)] for _ in range(3000)]
    return [Schedule(tiling=tiling, ordering=ordering) for ordering in covering_sample(drawn, axes)]


@pytest.mark.parametrize("chosen", orderings(), ids=str)
def test_every_ordering_is_right(session: Session, builder: Builder, gpu: Gpu, chosen: Schedule) -> None:
    run(session, builder, gpu, problem(ORDERED), fused(chosen))


def test_unequal_tile_heights_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    asked = problem(ffn_pair(m=700, d_in=256, d_hidden=640, d_out=320))
    for up, down, columns in ((128, 64, 128), (64, 128, 128), (128, 192, 64), (64, 192, 64)):
        for granularity, width in SYNCS:
            tiles = ((up, 64, 64), (down, columns, 32))
            chosen = schedule(tiles, granularity=granularity, sync_width=width, warps=8)
            run(session, builder, gpu, asked, fused(chosen))


def test_an_exact_path_is_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    rasters = (Raster(kind=RasterKind.EXACT, width=4),) * 2
    chosen = schedule(((64, 64, 64), (64, 64, 64)), rasters=rasters)
    run(session, builder, gpu, problem(ffn_pair(m=256, d_in=256, d_hidden=256, d_out=256)), fused(chosen))


def test_independent_ops_share_one_launch(session: Session, builder: Builder, gpu: Gpu) -> None:
    asked = problem(independent_pair((64, 512, 512), (64, 128, 512)))
    run(session, builder, gpu, asked, fused(schedule(((64, 64, 64), (32, 64, 64)))))


def test_three_ops_are_a_longer_list(session: Session, builder: Builder, gpu: Gpu) -> None:
    ops = (
        GemmOp(name="a", m=100, n=256, k=128, activation=Activation.RELU),
        GemmOp(name="b", m=100, n=192, k=256, source="a", activation=Activation.SILU),
        GemmOp(name="c", m=100, n=320, k=192, source="b"),
    )
    asked = problem(Workload(kind=WorkloadKind.CHAIN, ops=ops))
    for interleave in (Interleave(), Interleave(kind=InterleaveKind.BANDS, rows=1)):
        chosen = schedule(((32, 64, 64), (64, 64, 64), (32, 64, 64)), interleave=interleave)
        run(session, builder, gpu, asked, fused(chosen))
