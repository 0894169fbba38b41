"""The warp-specialised engine on a card: every tile shape, edge, option and way of launching, against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.on_card import (
    RAGGED,
    chain_of_three,
    check_abort,
    check_artifact,
    check_relaunches,
    fused,
    problem,
    run,
    run_kind,
)
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, ffn_pair, independent_pair
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Ordering,
    Raster,
    RasterKind,
    Schedule,
    SplitOrder,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session


@pytest.fixture(autouse=True)
def hopper(gpu: Gpu) -> None:
    if gpu.compute_capability != (9, 0):
        pytest.skip(f"{gpu.name} has no wgmma")


def schedule(
    tiles: tuple[tuple[int, int, int], ...],
    *,
    stages: int = 4,
    input_stages: int = 3,
    split_k: tuple[int, ...] = (),
    window: int = 0,
    assignment: Assignment = Assignment.STATIC,
    raster: RasterKind = RasterKind.ROW,
    granularity: Granularity = Granularity.ROW,
    partition: int = 0,
    cluster: tuple[int, ...] = (1, 1),
    **ordering: Any,
) -> Schedule:
    rows = max(m for m, _, _ in tiles) // cluster[0]
    tiling = Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles),
        num_stages=stages,
        input_stages=input_stages,
        num_warps=4 if rows <= 64 else 8 if rows <= 128 or rows % 128 == 0 else 12,
        split_k=split_k,
        window=window,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        cluster_k=cluster[2] if len(cluster) > 2 else 1,
    )
    chosen = Ordering(
        rasters=(Raster(kind=raster),) * len(tiles),
        assignment=Assignment.STEALING if partition else assignment,
        granularity=granularity,
        partition=partition,
        **ordering,
    )
    return Schedule(tiling=tiling, ordering=chosen)


CASES = {
    "16 rows": schedule(((16, 64, 64), (16, 32, 128))),
    "16 rows, deep stages": schedule(((16, 48, 256), (16, 16, 512)), stages=3, input_stages=2),
    "32 rows, tickets": schedule(((32, 112, 64), (32, 96, 64)), assignment=Assignment.TICKET),
    "64 rows, window": schedule(((64, 112, 128), (64, 48, 64)), stages=5, window=2),
    "64 rows, split": schedule(((64, 112, 64), (64, 64, 64)), split_k=(2, 3)),
    "64 rows, part-major": schedule(((64, 64, 64), (64, 64, 64)), split_k=(2, 3), part_major=True),
    "16 rows, split, tickets": schedule(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), assignment=Assignment.TICKET),
    "32 rows, split": schedule(((32, 80, 64), (32, 64, 64)), split_k=(1, 8), granularity=Granularity.TILE),
    "128 rows": schedule(((128, 224, 64), (128, 256, 64))),
    "128 rows, columns": schedule(((128, 80, 64), (128, 64, 64)), raster=RasterKind.COLUMN),
    "128 rows, split": schedule(((128, 176, 64), (128, 128, 64)), split_k=(1, 4), assignment=Assignment.TICKET),
    "48 rows": schedule(((48, 64, 64), (48, 32, 128))),
    "80 and 112 rows, split": schedule(((80, 96, 64), (112, 64, 64)), split_k=(2, 3), granularity=Granularity.TILE),
    "two CTAs of 96 rows": schedule(((192, 64, 64), (192, 64, 64)), split_k=(1, 2), cluster=(2, 1)),
    "144 and 176 rows, tickets": schedule(((144, 128, 64), (176, 192, 64)), assignment=Assignment.TICKET),
    "192 rows": schedule(((192, 192, 64), (192, 176, 64)), stages=3, input_stages=3),
    "192 rows, split": schedule(((192, 136, 64), (192, 96, 64)), split_k=(2, 4), assignment=Assignment.TICKET),
    "192 rows, slices": schedule(
        ((192, 64, 64), (192, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE
    ),
    "256 rows": schedule(((256, 128, 64), (256, 112, 64)), input_stages=2),
    "256 rows, most sums": schedule(((256, 192, 64), (256, 184, 64)), input_stages=4),
    "two CTAs of 256 rows": schedule(((512, 176, 64), (512, 192, 64)), stages=3, cluster=(2, 1)),
    "64 rows, joint rings, split": schedule(((64, 112, 64), (64, 64, 64)), input_stages=4, split_k=(2, 3)),
    "128 rows, joint rings, tickets": schedule(
        ((128, 96, 64), (128, 128, 64)), input_stages=4, assignment=Assignment.TICKET
    ),
    "48 rows, joint rings, slices": schedule(
        ((48, 48, 64), (48, 64, 64)),
        input_stages=4,
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        run_ahead=0,
    ),
    **{
        f"waits by slice of {name}": schedule(tiles, wait_position=WaitPosition.SLICE, **more)
        for name, tiles, more in (
            ("16 rows", ((16, 64, 64), (16, 32, 64)), {"granularity": Granularity.TILE}),
            ("16 rows, chunks", ((16, 48, 128), (16, 16, 64)), {"granularity": Granularity.CHUNK, "sync_width": 4}),
            (
                "64 rows, parts",
                ((64, 48, 64), (64, 64, 64)),
                {"granularity": Granularity.TILE, "split_k": (1, 2), "assignment": Assignment.TICKET},
            ),
            (
                "tall readers, no run-ahead",
                ((128, 96, 64), (256, 112, 64)),
                {"granularity": Granularity.CHUNK, "sync_width": 2, "run_ahead": 0, "input_stages": 2},
            ),
        )
    },
    "16 rows, strided parts": schedule(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), split_order=SplitOrder.STRIDED),
    **{
        f"strided parts by slice, {name}": schedule(
            tiles, split_order=SplitOrder.STRIDED, wait_position=WaitPosition.SLICE, **more
        )
        for name, tiles, more in (
            ("16 rows", ((16, 48, 64), (16, 64, 64)), {"granularity": Granularity.TILE, "split_k": (1, 3)}),
            (
                "64 rows, window, tickets",
                ((64, 48, 64), (64, 64, 64)),
                {
                    "granularity": Granularity.CHUNK,
                    "sync_width": 4,
                    "split_k": (2, 4),
                    "window": 2,
                    "assignment": Assignment.TICKET,
                },
            ),
            (
                "128 rows, no run-ahead",
                ((128, 96, 64), (128, 128, 64)),
                {"granularity": Granularity.TILE, "split_k": (1, 4), "run_ahead": 0},
            ),
            (
                "64 rows, stealing",
                ((64, 64, 64), (64, 64, 64)),
                {"granularity": Granularity.TILE, "split_k": (2, 3), "partition": 6},
            ),
        )
    },
    **{f"run-ahead {n}": schedule(((16, 64, 64), (16, 32, 128)), run_ahead=n) for n in (0, 25, 50)},
    "run-ahead 0, tickets": schedule(
        ((64, 96, 64), (64, 64, 64)), run_ahead=0, split_k=(1, 4), assignment=Assignment.TICKET
    ),
    "unequal rows": schedule(((64, 96, 64), (16, 32, 64))),
    "16 rows, stealing by the readers": schedule(((16, 64, 64), (16, 32, 128)), partition=1),
    "16 rows, stealing by both": schedule(((16, 64, 64), (16, 32, 64)), partition=4, granularity=Granularity.TILE),
    "64 rows, split, stealing by the producers": schedule(((64, 64, 64), (64, 64, 64)), split_k=(2, 3), partition=7),
    "unequal rows of two groups": schedule(((256, 96, 64), (128, 64, 64)), input_stages=2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_tile_shape_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, dtype: Dtype) -> None:
    run(session, builder, gpu, problem(replace(RAGGED, dtype=dtype)), fused(CASES[case]))


@pytest.mark.parametrize("m", [1, 16, 37, 64, 129, 193])
def test_every_number_of_rows_is_right(session: Session, builder: Builder, gpu: Gpu, m: int) -> None:
    pair = ffn_pair(m=m, d_in=264, d_hidden=512, d_out=136, activation=Activation.GELU, bias=True)
    for name in ("16 rows", "64 rows, split", "80 and 112 rows, split", "128 rows", "192 rows, split"):
        run(session, builder, gpu, problem(pair), fused(CASES[name]))


def test_the_smallest_problem_is_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    pair = ffn_pair(m=1, d_in=8, d_hidden=8, d_out=8)
    run(session, builder, gpu, problem(pair), fused(schedule(((16, 16, 64), (16, 16, 64)))))


@pytest.mark.parametrize(
    "options",
    [{"gated": True}, {"gated": True, "bias": True, "residual": True, "row_scale": True}, {"residual": True}],
    ids=lambda options: "+".join(options),
)
def test_every_option_is_right(session: Session, builder: Builder, gpu: Gpu, options: dict[str, bool]) -> None:
    pair = ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU, **options)
    for tiles, split in (
        (((16, 64, 64), (16, 64, 64)), ()),
        (((64, 64, 128), (64, 48, 64)), (2, 2)),
        (((128, 128, 64), (128, 64, 64)), ()),
    ):
        run(session, builder, gpu, problem(pair), fused(schedule(tiles, split_k=split)))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    names = ["16 rows", "64 rows, split", "128 rows", "32 rows, tickets", "16 rows, stealing by both"]
    if kind.is_fused or kind is PlanKind.TWO_STREAMS:  # signals
        names.append("waits by slice of 16 rows")
    run_kind(session, builder, gpu, RAGGED, kind, (CASES[name] for name in names))


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chain = chain_of_three(100, (128, 264, 512, 64))
    run(session, builder, gpu, problem(chain), fused(schedule(((64, 64, 64), (64, 128, 64), (64, 32, 128)))))
    both = independent_pair((64, 512, 512), (64, 128, 512))
    run(session, builder, gpu, problem(both), fused(schedule(((64, 64, 128), (64, 32, 128)))))


@pytest.mark.parametrize("wait", [0, -1])
@pytest.mark.parametrize(
    "assigned", [{"assignment": Assignment.STATIC}, {"assignment": Assignment.TICKET}, {"partition": 5}], ids=str
)
def test_an_aborted_launch_leaves_nan_or_what_is_right(
    session: Session, builder: Builder, gpu: Gpu, assigned: dict[str, Any], wait: int
) -> None:
    """The first wait asks for a post too many; or the last one, which stands before a task's last k-steps."""
    position = WaitPosition.SLICE if wait else WaitPosition.TASK
    tile_m = 16 if "partition" in assigned else 64
    tiles = ((tile_m, 96, 64), (tile_m, 64, 64))
    chosen = schedule(tiles, granularity=Granularity.TILE, wait_position=position, **assigned)
    check_abort(session, builder, gpu, problem(RAGGED), chosen, wait=wait)


def test_an_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    pair = ffn_pair(m=50, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU, gated=True)
    for name in ("64 rows, split", "32 rows, tickets"):
        check_artifact(builder, gpu, problem(pair), fused(CASES[name]), tmp_path)


def test_relaunches_give_the_same_bits(session: Session, builder: Builder, gpu: Gpu) -> None:
    check_relaunches(session, builder, gpu, problem(RAGGED), fused(CASES["64 rows, split"]))
