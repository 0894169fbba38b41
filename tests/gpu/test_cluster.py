"""Clusters of CTAs on a card: every shape of cluster, edge, option and way of launching, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.test_wgmma import hopper, schedule
from tests.support.on_card import (
    RAGGED,
    WHOLE,
    check_abort,
    check_artifact,
    check_relaunches,
    fused,
    problem,
    run,
    run_kind,
)
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, ffn_pair
from tuner.core.schedule.candidate import PlanKind
from tuner.core.schedule.ordering import Assignment, Granularity, RasterKind, SplitOrder, WaitPosition
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper"]

TICKET = Assignment.TICKET
CASES = {
    "1x2, 16 rows": schedule(((16, 128, 64), (16, 64, 128)), cluster=(1, 2)),
    "1x2, 64 rows, window": schedule(((64, 192, 128), (64, 112, 64)), stages=5, window=2, cluster=(1, 2)),
    "1x2, 128 rows": schedule(((128, 352, 64), (128, 128, 64)), cluster=(1, 2)),
    "1x2, tickets": schedule(((64, 128, 64), (64, 64, 64)), assignment=TICKET, cluster=(1, 2)),
    "1x2, split": schedule(((64, 192, 64), (64, 96, 64)), split_k=(2, 3), cluster=(1, 2)),
    "1x4, 16 rows": schedule(((16, 256, 128), (16, 128, 256)), stages=3, input_stages=2, cluster=(1, 4)),
    "1x4, 64 rows": schedule(((64, 256, 64), (64, 128, 128)), cluster=(1, 4)),
    "1x4, split, tickets": schedule(((32, 256, 64), (32, 128, 64)), split_k=(3, 4), assignment=TICKET, cluster=(1, 4)),
    "2x1, 128 rows": schedule(((128, 64, 64), (128, 48, 64)), raster=RasterKind.COLUMN, cluster=(2, 1)),
    "2x1, 256 rows": schedule(((256, 224, 64), (256, 128, 64)), cluster=(2, 1)),
    "2x1, split, tickets": schedule(((256, 112, 64), (256, 64, 64)), split_k=(1, 4), assignment=TICKET, cluster=(2, 1)),
    "1x2, waits by slice": schedule(
        ((64, 64, 64), (64, 64, 64)),
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        assignment=TICKET,
        cluster=(1, 2),
    ),
    "2x1, strided parts by slice, tickets": schedule(
        ((128, 64, 64), (128, 64, 64)),
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        split_k=(2, 3),
        split_order=SplitOrder.STRIDED,
        assignment=TICKET,
        cluster=(2, 1),
    ),
    "1x2, run-ahead 25": schedule(((16, 128, 64), (16, 64, 128)), run_ahead=25, cluster=(1, 2)),
    "2x1, run-ahead 0, tickets": schedule(
        ((128, 64, 64), (128, 64, 64)), run_ahead=0, split_k=(1, 3), assignment=TICKET, cluster=(2, 1)
    ),
    "1x2, stealing": schedule(((64, 64, 64), (64, 64, 64)), partition=6, cluster=(1, 2)),
    "4x1": schedule(((64, 64, 64), (128, 32, 64)), cluster=(4, 1)),
    "2x2": schedule(((128, 128, 64), (128, 64, 64)), granularity=Granularity.TILE, cluster=(2, 2)),
    "2x2, tickets": schedule(((256, 256, 64), (256, 128, 64)), assignment=TICKET, cluster=(2, 2)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", [RAGGED, WHOLE], ids=["ragged", "whole"])
def test_every_shape_of_cluster_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, pair: Any) -> None:
    run(session, builder, gpu, problem(pair), fused(CASES[case]))


@pytest.mark.parametrize("m", [1, 16, 37, 64, 129])
def test_ctas_of_a_cluster_may_have_no_rows_or_columns(session: Session, builder: Builder, gpu: Gpu, m: int) -> None:
    pair = ffn_pair(m=m, d_in=264, d_hidden=520, d_out=72, activation=Activation.GELU, bias=True)
    for name in ("1x2, split", "1x4, split, tickets", "2x1, split, tickets", "2x2"):
        run(session, builder, gpu, problem(pair), fused(CASES[name]))


@pytest.mark.parametrize("cluster", [(1, 2), (2, 1), (2, 2), (1, 4)], ids=str)
def test_every_option_is_right(session: Session, builder: Builder, gpu: Gpu, cluster: tuple[int, int]) -> None:
    options = {"gated": True, "bias": True, "residual": True, "row_scale": True}
    pair = ffn_pair(m=150, d_in=136, d_hidden=264, d_out=72, activation=Activation.SILU, **options)
    rows, columns = 64 * cluster[0], 32 * cluster[1]
    for depth, split in ((64, ()), (128, (2, 2))):
        tiles = ((rows, columns, depth), (rows, 2 * columns, 64))
        run(session, builder, gpu, problem(pair), fused(schedule(tiles, split_k=split, cluster=cluster)))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    names = ("1x2, 128 rows", "1x4, 64 rows", "2x1, 256 rows", "1x2, tickets")
    run_kind(session, builder, gpu, RAGGED, kind, (CASES[name] for name in names))


@pytest.mark.parametrize("cluster_size", [2, 4])
def test_the_driver_holds_as_many_clusters_as_the_plans_count_on(builder: Builder, gpu: Gpu, cluster_size: int) -> None:
    from tuner.workers.gpu.baselines import launchable_of
    from tuner.workers.gpu.launch import Kernel

    case = {2: "1x2, 128 rows", 4: "1x4, 64 rows"}[cluster_size]
    work = prepare(RAGGED, gpu, fused(CASES[case]), builder, {}).work
    kernel = Kernel(launchable_of(work))
    print(f"clusters of {cluster_size}: the driver says {kernel.max_clusters()}")
    assert kernel.cluster_size == cluster_size
    assert kernel.max_clusters() >= gpu.num_clusters(cluster_size)


@pytest.mark.parametrize("case", ["1x2, 128 rows", "1x2, tickets", "2x2"])
def test_an_aborted_launch_leaves_nan_or_what_is_right(session: Session, builder: Builder, gpu: Gpu, case: str) -> None:
    check_abort(session, builder, gpu, problem(RAGGED), CASES[case])


def test_an_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    for name in ("1x2, split", "2x2, tickets"):
        manifest = check_artifact(builder, gpu, problem(RAGGED), fused(CASES[name]), tmp_path)
        assert manifest["launches"][0]["grid"][0] % manifest["launches"][0]["cluster"][0] == 0


@pytest.mark.parametrize("case", ["1x2, split", "2x2, tickets"])
def test_relaunches_give_the_same_bits(session: Session, builder: Builder, gpu: Gpu, case: str) -> None:
    check_relaunches(session, builder, gpu, problem(RAGGED), fused(CASES[case]))
