"""The order of sums: unchanged by anything that only moves bytes, and changed if products are added in a different
order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import H200, simt, small_gpu, tiling, wgmma
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.order_of_sums import OrderOfSums, order_of_sums
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, RasterKind, SplitOrder, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Epilogue, Tiling
from tuner.ops.gemm.pairs import ffn_pair


def pair(m: int = 48, d_hidden: int = 512) -> Workload:
    return ffn_pair(m=m, d_in=256, d_hidden=d_hidden, d_out=256)


def order(
    chosen: Tiling, workload: Workload | None = None, kind: PlanKind = PlanKind.FUSED, gpu: Any = H200, **ordering: Any
) -> OrderOfSums:
    given = {"rasters": (Raster(), Raster()), "assignment": Assignment.STATIC, **ordering}
    schedule = Schedule.of(tiling=chosen, ordering=Ordering(**given))
    return order_of_sums(plans_for(workload or pair(), gpu, Candidate(plan_kind=kind, schedule=schedule)))


def test_it_is_said_in_words() -> None:
    found = order(wgmma((16, 64, 64), split_k=(1, 2)))
    assert found == OrderOfSums(text="wgmma; up: 0-256; down: 0-256 + 256-512", is_of_rows=True)


@pytest.mark.parametrize(
    "other",
    [
        order(wgmma((16, 64, 128))),
        order(wgmma((64, 128, 64), num_stages=3)),
        order(wgmma((16, 64, 64)), kind=PlanKind.TWO_LAUNCHES_PDL),
        order(wgmma((16, 64, 64)), kind=PlanKind.TWO_STREAMS),
        order(wgmma((16, 64, 64)), pair(m=16)),
        order(wgmma((16, 64, 64)), assignment=Assignment.TICKET, rasters=(Raster(kind=RasterKind.COLUMN), Raster())),
    ],
    ids=["depth of a stage", "tile", "launches", "streams", "rows", "order of tasks"],
)
def test_what_only_moves_bytes_or_tasks_keeps_it(other: OrderOfSums) -> None:
    assert other == order(wgmma((16, 64, 64)))


def test_what_adds_up_otherwise_is_another_one() -> None:
    small = wgmma((64, 64, 64), swap_ab=True)
    texts = [
        order(wgmma((16, 64, 64))).text,
        order(tiling((16, 64), (16, 64), k=64, num_stages=3)).text,
        order(simt((4, 16, 256), num_warps=4), pair(m=4)).text,
        order(small).text,
        order(wgmma((64, 64, 64), epilogue=Epilogue.TMA)).text,
        order(wgmma((16, 64, 64), split_k=(1, 2))).text,
        order(wgmma((16, 64, 64), split_k=(1, 4))).text,
        order(wgmma((16, 64, 64), split_k=(1, 2)), split_order=SplitOrder.STRIDED).text,
        order(wgmma((16, 64, 128), split_k=(1, 2)), split_order=SplitOrder.STRIDED).text,
        order(wgmma((64, 64, 64), cluster_k=2)).text,
    ]
    assert len(set(texts)) == len(texts)


def test_parts_are_the_same_whatever_the_stage_where_their_columns_are() -> None:
    assert order(wgmma((16, 64, 64), split_k=(1, 2))) == order(wgmma((16, 64, 128), split_k=(1, 2)))
    uneven = pair(d_hidden=448)  # 7 stages of 64, or 4 of 128 with the last one half empty
    assert order(wgmma((16, 64, 64), split_k=(1, 2)), uneven) != order(wgmma((16, 64, 128), split_k=(1, 2)), uneven)


def test_where_some_tile_rows_are_split_and_others_not_a_row_depends_on_its_place() -> None:
    split, parts = wgmma((16, 64, 64), split_k=(1, 2)), {"split_tiles": SplitTiles.TAIL}
    assert not order(split, pair(), PlanKind.FUSED, small_gpu(5), **parts).is_of_rows
    one_row_of_tiles = order(split, pair(m=16), PlanKind.TWO_LAUNCHES, small_gpu(3), **parts)
    assert one_row_of_tiles.is_of_rows
    assert "down: column by column of 64, " in one_row_of_tiles.text


def test_ctas_that_finish_rows_of_a_tile_each_in_an_order_of_its_own_are_told() -> None:
    assert order(wgmma((64, 64, 64), cluster_k=4)).is_of_rows
    assert "4 CTAs that share 64 columns" in order(wgmma((64, 64, 64), cluster_k=4)).text
    assert order(wgmma((64, 64, 64), swap_ab=True, cluster_k=2)).is_of_rows
    assert not order(wgmma((64, 64, 64), swap_ab=True, cluster_k=4)).is_of_rows
