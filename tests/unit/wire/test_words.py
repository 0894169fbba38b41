"""Schedules as text: every axis changes the sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.ops.gemm.pairs import ffn_pair
from tuner.wire.responses.words import candidate_words

PAIR = ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64)
TILING = Tiling(tiles=(Tile(m=16, n=32, k=64), Tile(m=16, n=64, k=32)), num_stages=3, num_warps=4)
WGMMA = replace(TILING, engine=Engine.WGMMA, input_stages=2)
ORDERING = Ordering(rasters=(Raster(), Raster()))
BANDS = Interleave(kind=InterleaveKind.BANDS, rows=2)


def words(plan_kind: PlanKind = PlanKind.FUSED, tiling: Tiling = TILING, ordering: Ordering = ORDERING) -> str:
    schedule = Schedule.of(tiling=tiling, ordering=ordering)
    return " ".join(candidate_words(Candidate(plan_kind=plan_kind, schedule=schedule), PAIR))


@pytest.mark.parametrize("kind", PlanKind)
def test_every_plan_kind_has_a_sentence_of_its_own(kind: PlanKind) -> None:
    others = [candidate_words(Candidate(plan_kind=other), PAIR)[0] for other in PlanKind if other is not kind]
    assert candidate_words(Candidate(plan_kind=kind), PAIR)[0] not in others


VARIANTS: dict[str, Tiling | Ordering] = {
    "tile": replace(TILING, tiles=(Tile(m=16, n=32, k=128), Tile(m=16, n=64, k=32))),
    "stages": replace(TILING, num_stages=4),
    "warps": replace(TILING, num_warps=8),
    "engine": WGMMA,
    "input stages": replace(WGMMA, input_stages=3),
    "window": replace(WGMMA, window=2),
    "ahead window": replace(WGMMA, ahead_window=2),
    "in band": replace(WGMMA, in_band=True),
    "startup prefetch": replace(WGMMA, startup_prefetch=2),
    "more startup prefetch": replace(WGMMA, startup_prefetch=4),
    "warpgroups": replace(WGMMA, warpgroups=Warpgroups.PING_PONG),
    "swapped": replace(WGMMA, swap_ab=True),
    "epilogue": replace(WGMMA, epilogue=Epilogue.TMA),
    "weights": replace(TILING, weight_hint=CacheHint.EVICT_FIRST),
    "weights stay": replace(TILING, weight_hint=CacheHint.EVICT_LAST),
    "intermediate": replace(TILING, intermediate_hint=CacheHint.EVICT_LAST),
    "column": replace(ORDERING, rasters=(Raster(kind=RasterKind.COLUMN), Raster())),
    "grouped": replace(ORDERING, rasters=(Raster(kind=RasterKind.GROUPED, width=4), Raster())),
    "panel": replace(ORDERING, rasters=(Raster(kind=RasterKind.PANEL, width=4), Raster())),
    "wider panel": replace(ORDERING, rasters=(Raster(kind=RasterKind.PANEL, width=8), Raster())),
    "bands": replace(ORDERING, interleave=BANDS),
    "wider bands": replace(ORDERING, interleave=replace(BANDS, rows=3)),
    "granularity": replace(ORDERING, granularity=Granularity.TILE),
    "snake": replace(ORDERING, rasters=(Raster(kind=RasterKind.SNAKE, width=4), Raster())),
    "morton": replace(ORDERING, rasters=(Raster(kind=RasterKind.MORTON), Raster())),
    "hilbert": replace(ORDERING, rasters=(Raster(kind=RasterKind.HILBERT), Raster())),
    "exact": replace(ORDERING, rasters=(Raster(kind=RasterKind.EXACT, width=4), Raster())),
    "lag": replace(ORDERING, interleave=replace(BANDS, lag=1)),
    "chunks": replace(ORDERING, interleave=replace(BANDS, chunks=2)),
    **{
        str(kind): replace(ORDERING, interleave=Interleave(kind=kind))
        for kind in (InterleaveKind.HALF_ROWS, InterleaveKind.PROPORTIONAL, InterleaveKind.LONGEST_FIRST)
    },
    "chunk": replace(ORDERING, granularity=Granularity.CHUNK, sync_width=2),
    "wider chunk": replace(ORDERING, granularity=Granularity.CHUNK, sync_width=4),
    "strided": replace(ORDERING, granularity=Granularity.STRIDED, sync_width=2),
    "batch": replace(ORDERING, granularity=Granularity.BATCH, sync_width=2),
    "barrier": replace(ORDERING, granularity=Granularity.BARRIER),
    "shares": replace(ORDERING, assignment=Assignment.SHARES),
    "partition": replace(ORDERING, assignment=Assignment.STATIC, partition=2),
    "stealing": replace(ORDERING, assignment=Assignment.STEALING, partition=2),
    "assignment": replace(ORDERING, assignment=Assignment.STATIC),
    "CTAs": replace(ORDERING, ctas_per_sm=2),
    "reserve": replace(ORDERING, reserved_sms=4),
    "wait position": replace(ORDERING, wait_position=WaitPosition.SLICE),
    "run-ahead": replace(ORDERING, run_ahead=25),
    "split order": replace(ORDERING, split_order=SplitOrder.STRIDED),
}


def test_every_axis_changes_the_words() -> None:
    texts = {words()} | {
        words(tiling=variant) if isinstance(variant, Tiling) else words(ordering=variant)
        for variant in VARIANTS.values()
    }
    assert len(texts) == len(VARIANTS) + 1


@pytest.mark.slow
def test_two_launches_do_not_speak_of_merging() -> None:
    assert "Merge" in words()
    assert "Merge" not in words(PlanKind.TWO_LAUNCHES)
