"""CTAs of a cluster that share a tile's k, on a card: every cut of a tile, edge, option and way of launching, against
float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.test_swap_ab import schedule as swapped
from tests.gpu.test_wgmma import hopper
from tests.gpu.test_wgmma import schedule as plain
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
from tuner.core.legal.legality import check_schedule
from tuner.core.legal.wgmma import sum_exchanges
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload, ffn_pair, independent_pair
from tuner.core.schedule.ordering import Assignment, Granularity, RasterKind, Schedule, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper"]

#: Of tiles of depth 64 some CTAs have a k-step more.
WHOLE = ffn_pair(m=256, d_in=512, d_hidden=1088, d_out=512, activation=Activation.RELU, dtype=Dtype.BF16)
TICKET = Assignment.TICKET
TWO, FOUR = (1, 1, 2), (1, 1, 4)


def schedule(tiles: tuple[tuple[int, int, int], ...], **fields: Any) -> Schedule:
    """On few SMs, so that each cluster has several tasks."""
    return plain(tiles, **{"reserved_sms": 120, **fields})


CASES = {
    "2, 16 rows": schedule(((16, 128, 64), (16, 64, 128)), cluster=TWO),
    "2, 16 rows, deep stages": schedule(((16, 64, 256), (16, 32, 512)), stages=3, input_stages=2, cluster=TWO),
    "2, 48 rows, shares of unequal size": schedule(((48, 72, 64), (48, 24, 64)), cluster=TWO),
    "2, 64 rows, window": schedule(((64, 176, 128), (64, 112, 64)), stages=3, window=2, cluster=TWO),
    "2, 128 rows": schedule(((128, 176, 64), (128, 256, 64)), stages=3, input_stages=2, cluster=TWO),
    "2, 112 rows, tickets": schedule(((112, 128, 64), (112, 64, 64)), assignment=TICKET, cluster=TWO),
    "2, 192 rows": schedule(((192, 128, 64), (192, 96, 64)), stages=2, input_stages=2, cluster=TWO),
    "2, 192 rows, odd exchanges, tickets": schedule(
        ((192, 160, 64), (192, 96, 64)), stages=2, input_stages=2, assignment=TICKET, cluster=TWO
    ),
    "2, 256 rows, tickets": schedule(
        ((256, 64, 64), (256, 128, 64)), stages=2, input_stages=2, assignment=TICKET, cluster=TWO
    ),
    "4, 16 rows": schedule(((16, 256, 64), (16, 128, 128)), stages=3, input_stages=2, cluster=FOUR),
    "4, 64 rows, shares of unequal size": schedule(((64, 88, 64), (64, 200, 64)), cluster=FOUR),
    "4, 64 rows, tickets": schedule(((64, 128, 64), (64, 64, 64)), assignment=TICKET, cluster=FOUR),
    "4, 128 rows": schedule(((128, 64, 64), (128, 96, 64)), raster=RasterKind.COLUMN, cluster=FOUR),
    "2, an exchange of one vector": schedule(((64, 16, 64), (64, 48, 64)), cluster=TWO),
    "4, 128 rows, shares with fewer vectors than exchanges": schedule(
        ((128, 200, 64), (128, 176, 64)), stages=3, input_stages=2, cluster=FOUR
    ),
    "4, 128 rows, odd exchanges, tickets": schedule(
        ((128, 160, 64), (128, 96, 64)), stages=3, input_stages=2, assignment=TICKET, cluster=FOUR
    ),
    "1x2 and 2": schedule(((64, 192, 64), (64, 128, 64)), cluster=(1, 2, 2)),
    "2x1 and 2, tickets": schedule(((256, 112, 64), (256, 64, 64)), assignment=TICKET, cluster=(2, 1, 2)),
    "2, unequal rows": schedule(((64, 96, 64), (16, 32, 64)), granularity=Granularity.TILE, cluster=TWO),
    "2, each task alone": schedule(((16, 128, 64), (16, 64, 64)), reserved_sms=0, cluster=TWO),
    "2, swapped, 200 rows": swapped(((200, 64, 64), (200, 48, 64)), cluster=TWO),
    "2, swapped, lower second blocks, tickets": swapped(((24, 112, 64), (24, 176, 64)), assignment=TICKET, cluster=TWO),
    "2, swapped, 256 rows": swapped(((256, 96, 64), (256, 128, 64)), warps=8, stages=3, cluster=TWO),
    "4, swapped, 136 rows": swapped(((136, 144, 64), (136, 160, 64)), warps=12, stages=2, input_stages=2, cluster=FOUR),
    "4, swapped, 104 rows, tickets": swapped(((104, 64, 64), (104, 64, 64)), assignment=TICKET, cluster=FOUR),
    "2x1 and 2, swapped": swapped(((128, 64, 64), (128, 64, 64)), cluster=(2, 1, 2)),
    "2, shares": schedule(((64, 64, 64), (64, 64, 64)), assignment=Assignment.SHARES, cluster=TWO),
    "2, stealing": schedule(((64, 64, 64), (64, 64, 64)), partition=5, cluster=TWO),
    "4, stealing by both": schedule(
        ((16, 64, 64), (16, 32, 64)), partition=4, granularity=Granularity.TILE, cluster=FOUR
    ),
    "2, run-ahead 25": schedule(((16, 128, 64), (16, 64, 128)), run_ahead=25, cluster=TWO),
    "4, run-ahead 0, tickets": schedule(((64, 64, 64), (64, 64, 64)), run_ahead=0, assignment=TICKET, cluster=FOUR),
    **{
        f"{sharers[2]}, waits by slice of {name}": schedule(
            tiles, wait_position=WaitPosition.SLICE, cluster=sharers, **more
        )
        for sharers in (TWO, FOUR)
        for name, tiles, more in (
            ("16 rows", ((16, 64, 64), (16, 32, 64)), {"granularity": Granularity.TILE}),
            (
                "64 rows, tickets",
                ((64, 48, 64), (64, 64, 64)),
                {"granularity": Granularity.TILE, "assignment": TICKET},
            ),
            (
                "tall readers, no run-ahead",
                ((96, 96, 64), (128, 112, 64)),
                {"granularity": Granularity.CHUNK, "sync_width": 2, "run_ahead": 0, "input_stages": 2},
            ),
        )
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", [RAGGED, WHOLE], ids=["ragged", "whole"])
def test_every_cut_of_a_tile_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, pair: Workload) -> None:
    check_schedule(pair, gpu, CASES[case])
    run(session, builder, gpu, problem(pair), fused(CASES[case]))


def test_every_number_of_exchanges_occurs() -> None:
    found = {
        (chosen.tiling.cluster_k, sum_exchanges(op, tile, chosen.tiling)[0])
        for chosen in CASES.values()
        for op, tile in zip(RAGGED.ops, chosen.tiling.cta_tiles, strict=True)
    }
    assert found == {
        *((2, exchanges) for exchanges in (1, 2, 3, 4, 5, 6)),
        *((4, exchanges) for exchanges in (1, 2, 3, 4, 5, 6, 8)),
    }


@pytest.mark.parametrize("m", [1, 16, 37, 64, 129, 193])
def test_every_number_of_rows_is_right(session: Session, builder: Builder, gpu: Gpu, m: int) -> None:
    pair = ffn_pair(m=m, d_in=264, d_hidden=520, d_out=72, activation=Activation.GELU, bias=True)
    for name in ("2, 16 rows", "2, 112 rows, tickets", "4, 64 rows, tickets", "1x2 and 2", "2x1 and 2, swapped"):
        run(session, builder, gpu, problem(pair), fused(CASES[name]))
    for name in ("2, 192 rows", "4, 128 rows, shares with fewer vectors than exchanges"):
        alone = replace(CASES[name], ordering=replace(CASES[name].ordering, reserved_sms=0))  # tasks are few
        run(session, builder, gpu, problem(pair), fused(alone))


def test_a_k_step_for_each_is_enough(session: Session, builder: Builder, gpu: Gpu) -> None:
    pair = ffn_pair(m=40, d_in=200, d_hidden=248, d_out=40)
    run(session, builder, gpu, problem(pair), fused(schedule(((48, 32, 64), (48, 40, 64)), cluster=FOUR)))


@pytest.mark.parametrize("cluster", [TWO, FOUR, (1, 2, 2), (2, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True},
        {"residual": True},
        {"row_scale": True},
        {"gated": True},
        {"gated": True, "bias": True, "residual": True, "row_scale": True},
    ],
    ids=lambda options: "+".join(options) or "none",
)
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_option_is_right(
    session: Session, builder: Builder, gpu: Gpu, cluster: tuple[int, ...], options: dict[str, bool], dtype: Dtype
) -> None:
    pair = ffn_pair(m=150, d_in=256, d_hidden=520, d_out=200, activation=Activation.SILU, dtype=dtype, **options)
    rows, columns = 64 * cluster[0], 64 * cluster[1]
    for tiles in (
        ((rows, columns, 64), (rows, 2 * columns, 64)),
        ((2 * rows, columns, 64), (rows + 64 * cluster[0], columns, 64)),
    ):
        for build in (schedule, swapped):
            chosen = build(tiles, stages=3, input_stages=2, cluster=cluster)
            run(session, builder, gpu, problem(pair), fused(chosen))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    names = ("2, 128 rows", "4, 16 rows", "1x2 and 2", "4, 64 rows, tickets", "2, stealing")
    run_kind(session, builder, gpu, RAGGED, kind, (CASES[name] for name in names))


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chain = chain_of_three(100, (256, 264, 512, 64))
    both = independent_pair((64, 512, 512), (64, 128, 512))
    for sharers in (TWO, FOUR):
        tiles = ((64, 64, 64), (16, 128, 64), (64, 32, 128))
        run(session, builder, gpu, problem(chain), fused(schedule(tiles, cluster=sharers)))
        run(session, builder, gpu, problem(both), fused(schedule(((64, 64, 128), (64, 32, 128)), cluster=sharers)))


@pytest.mark.parametrize("wait", [0, -1])
@pytest.mark.parametrize("sharers", [TWO, FOUR], ids=str)
@pytest.mark.parametrize(
    "assigned", [{"assignment": Assignment.STATIC}, {"assignment": TICKET}, {"partition": 4}], ids=str
)
def test_an_aborted_launch_leaves_nan_or_what_is_right(
    session: Session, builder: Builder, gpu: Gpu, assigned: dict[str, Any], sharers: tuple[int, ...], wait: int
) -> None:
    """The first wait asks for a post too many; or the last one, which stands before a task's last k-steps, so that
    one CTA alone gives up before it multiplies what it waited for."""
    position = WaitPosition.SLICE if wait else WaitPosition.TASK
    tile_m = 16 if "partition" in assigned else 64
    tiles = ((tile_m, 96, 64), (tile_m, 64, 64))
    chosen = schedule(tiles, granularity=Granularity.TILE, wait_position=position, cluster=sharers, **assigned)
    check_abort(session, builder, gpu, problem(RAGGED), chosen, wait=wait)


def test_an_artifact_runs_from_its_zip_alone(builder: Builder, gpu: Gpu, tmp_path: Path) -> None:
    for name in ("2, 128 rows", "1x2 and 2", "4, 64 rows, tickets"):
        check_artifact(builder, gpu, problem(RAGGED), fused(CASES[name]), tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        *("2, 112 rows, tickets", "4, 16 rows", "4, 64 rows, tickets", "2, stealing"),
        *("4, 128 rows, odd exchanges, tickets", "2, swapped, 256 rows", "2, 192 rows, odd exchanges, tickets"),
    ],
)
def test_relaunches_give_the_same_bits(session: Session, builder: Builder, gpu: Gpu, case: str) -> None:
    check_relaunches(session, builder, gpu, problem(RAGGED), fused(CASES[case]))
