"""The engine of the CUDA cores on a card: every tile shape, edge, option and way of launching, against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cases import simt
from tests.support.on_card import chain_of_three, check_abort, check_artifact, fused, problem, run, run_kind
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, ffn_pair, independent_pair
from tuner.core.schedule.candidate import PlanKind
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
from tuner.core.schedule.tiling import CacheHint, Tiling
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session


def schedule(tiling: Tiling, **changes: object) -> Schedule:
    """In static queues, row by row, where nothing else is asked for."""
    plain = Ordering(rasters=(Raster(),) * len(tiling.tiles), assignment=Assignment.STATIC)
    return Schedule(tiling=tiling, ordering=replace(plain, **changes))  # type: ignore[arg-type]


#: Of 4 rows in tiles of 4 and of 2: the first op's one row of tiles has no other order.
BY_COLUMN = (Raster(), Raster(kind=RasterKind.COLUMN))
CASES = {
    "one row": schedule(simt((1, 32, 256), (1, 16, 512))),
    "one row, a column a warp": schedule(simt((1, 8, 256), (1, 4, 256), num_warps=4)),
    "one row, wide": schedule(simt((1, 128, 256), (1, 104, 256), num_stages=2)),
    "one row, deep": schedule(simt((1, 16, 1024), num_stages=4)),
    "two rows, tickets": schedule(simt((2, 64, 256), (2, 32, 512)), assignment=Assignment.TICKET),
    "four rows, split": schedule(simt((4, 32, 256), (4, 64, 256), split_k=(2, 3))),
    "four rows, split, tickets": schedule(
        simt((4, 16, 256), (4, 8, 256), num_warps=4, split_k=(1, 4)), assignment=Assignment.TICKET
    ),
    "one row, split": schedule(simt((1, 32, 256), split_k=(3, 2)), granularity=Granularity.TILE),
    "slices": schedule(simt((4, 32, 256)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE),
    "strided parts": schedule(simt((1, 32, 256), split_k=(3, 4)), split_order=SplitOrder.STRIDED),
    "strided parts by slice, tickets": schedule(
        simt((4, 32, 256), split_k=(2, 3)),
        granularity=Granularity.TILE,
        wait_position=WaitPosition.SLICE,
        split_order=SplitOrder.STRIDED,
        assignment=Assignment.TICKET,
    ),
    "unequal rows": schedule(simt((4, 32, 256), (2, 64, 256)), rasters=BY_COLUMN),
    "two on an SM": schedule(simt((1, 8, 256), (1, 8, 256), num_stages=2, resident_ctas=2), ctas_per_sm=2),
    "hints": schedule(simt((2, 32, 256), weight_hint=CacheHint.NORMAL, intermediate_hint=CacheHint.EVICT_LAST)),
}
SPLITS = ["four rows, split", "four rows, split, tickets", "one row, split", "strided parts by slice, tickets"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_tile_shape_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, dtype: Dtype) -> None:
    pair = ffn_pair(m=4, d_in=2056, d_hidden=3000, d_out=1100, activation=Activation.RELU, dtype=dtype)
    run(session, builder, gpu, problem(pair), fused(CASES[case]))


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 9])
def test_every_number_of_rows_is_right(session: Session, builder: Builder, gpu: Gpu, m: int) -> None:
    pair = ffn_pair(m=m, d_in=1032, d_hidden=1544, d_out=137, activation=Activation.GELU, bias=True)
    for name in ("one row", "two rows, tickets", "four rows, split"):
        run(session, builder, gpu, problem(pair), fused(CASES[name]))


@pytest.mark.parametrize("shape", [(1, 8, 8, 8), (3, 8, 16, 1), (4, 248, 264, 33), (2, 2048, 8, 5)], ids=str)
def test_the_smallest_problems_are_right(
    session: Session, builder: Builder, gpu: Gpu, shape: tuple[int, int, int, int]
) -> None:
    m, d_in, d_hidden, d_out = shape
    pair = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out)
    run(session, builder, gpu, problem(pair), fused(schedule(simt((4, 8, 256)))))


@pytest.mark.parametrize(
    "options",
    [
        {"gated": True},
        {"gated": True, "bias": True, "residual": True, "row_scale": True},
        {"residual": True},
        {"bias": True, "row_scale": True},
    ],
    ids=lambda options: "+".join(options),
)
def test_every_option_is_right(session: Session, builder: Builder, gpu: Gpu, options: dict[str, bool]) -> None:
    pair = ffn_pair(m=4, d_in=1048, d_hidden=1304, d_out=75, activation=Activation.SILU, **options)
    for tiling in (
        simt((4, 32, 256)),
        simt((1, 8, 512), (2, 16, 256), num_warps=4),
        simt((4, 24, 256), split_k=(2, 2)),
    ):
        run(session, builder, gpu, problem(pair), fused(schedule(tiling)))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    pair = ffn_pair(m=4, d_in=2056, d_hidden=3000, d_out=1100, activation=Activation.RELU)
    names = ["one row", "four rows, split", "two rows, tickets"]
    if kind.is_fused or kind is PlanKind.TWO_STREAMS:  # signals
        names.append("slices")
    run_kind(session, builder, gpu, pair, kind, (CASES[name] for name in names))


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chain = chain_of_three(3, (520, 1032, 512, 67))
    run(session, builder, gpu, problem(chain), fused(schedule(simt((4, 16, 256), (2, 32, 512), (4, 8, 256)))))
    both = independent_pair((4, 512, 1024), (2, 131, 1024))
    run(session, builder, gpu, problem(both), fused(schedule(simt((4, 32, 256)))))


@pytest.mark.parametrize("name", SPLITS)
def test_parts_give_the_same_bits_in_every_launch(session: Session, builder: Builder, gpu: Gpu, name: str) -> None:
    pair = ffn_pair(m=4, d_in=2056, d_hidden=3000, d_out=1100)
    errors = {run(session, builder, gpu, problem(pair), fused(CASES[name])).rel_error for _ in range(2)}
    assert len(errors) == 1


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
def test_an_aborted_launch_is_told_and_the_next_one_is_right(
    session: Session, builder: Builder, gpu: Gpu, assignment: Assignment
) -> None:
    pair = ffn_pair(m=4, d_in=1032, d_hidden=1544, d_out=520)
    check_abort(session, builder, gpu, problem(pair), schedule(simt((4, 32, 256)), assignment=assignment))


@pytest.mark.parametrize("case", ["one row", "four rows, split, tickets", "two on an SM"])
def test_an_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path, case: str) -> None:
    pair = ffn_pair(m=4, d_in=520, d_hidden=1160, d_out=264, activation=Activation.RELU)
    check_artifact(builder, gpu, problem(pair), fused(CASES[case]), tmp_path)
