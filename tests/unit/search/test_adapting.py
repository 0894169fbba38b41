"""Adapting a schedule found for one shape to another: the same number of waves and equally full rings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.spaces import space_of
from tuner.core.legal.legality import check_kind, check_schedule, tiling_problem
from tuner.core.plan.order.rasters import ROW
from tuner.core.plan.order.split_k import num_tiles
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Ordering
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Tile, Tiling
from tuner.core.trial.job import Objective
from tuner.core.trial.priors import Found
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.guesses.adapting import MOST_COVERING, adapt

H200 = CATALOGUE["h200"]


def gated(m: int, d_hidden: int, width: int = 8192) -> Workload:
    return ffn_pair(m=m, d_in=width, d_hidden=d_hidden, d_out=width, activation=Activation.SILU, gated=True)


def found(workload: Workload, tiling: Tiling) -> Found:
    """A fused kernel with queues, legal for the shape for which it was found."""
    schedule = Schedule.of(tiling=tiling, ordering=Ordering(rasters=(ROW,) * len(tiling.tiles)))
    check_schedule(workload, H200, schedule)
    return Found(
        workload=workload,
        objective=Objective(),
        candidate=Candidate(plan_kind=PlanKind.FUSED, schedule=schedule),
        time_us=50.0,
        speedup=1.0,
        source="a test",
        kernel_version="",
    )


def tiling_of(m: int, widths: tuple[int, int], depths: tuple[int, int] = (64, 64), **fields: object) -> Tiling:
    tiles = tuple(Tile(m=m, n=n, k=k) for n, k in zip(widths, depths, strict=True))
    return Tiling(**{"engine": Engine.WGMMA, "tiles": tiles, "num_warps": 4} | fields)  # type: ignore[arg-type]


def adapted(workload: Workload, one: Found) -> Tiling:
    candidate = adapt(space_of(workload, H200), one)
    assert candidate is not None
    assert candidate.schedule is not None
    check_schedule(workload, H200, candidate.schedule)
    check_kind(workload, H200, candidate.plan_kind, candidate.schedule)
    return candidate.schedule.tiling


SHARED = tiling_of(64, (56, 128), num_stages=8, input_stages=8, cluster_k=2)


@pytest.mark.parametrize(("d_hidden", "width"), [(2816, 48), (3584, 56), (4096, 64)])
def test_tiles_of_other_columns_are_as_wide_as_the_same_waves_ask_for(d_hidden: int, width: int) -> None:
    now, workload = adapted(gated(64, d_hidden), found(gated(64, 3584), SHARED)), gated(64, d_hidden)
    assert [tile.n for tile in now.tiles] == [width, 128]
    assert num_tiles(workload.tile_ops[0], now.tiles[0]) <= H200.num_clusters(2)


def test_tiles_of_many_waves_stay_as_wide() -> None:
    many = tiling_of(64, (16, 128), (128, 128), num_stages=4, input_stages=4)
    before = gated(64, 16 * H200.num_sms * (MOST_COVERING + 1))
    assert adapted(gated(64, 16 * H200.num_sms * MOST_COVERING), found(before, many)).tiles[0].n == 16


def test_rings_that_were_as_deep_as_fits_are_so_where_tiles_are_lower() -> None:
    before, lower = gated(64, 13824, 5120), gated(48, 13824, 5120)
    full = tiling_of(64, (72, 80), (64, 128), num_stages=5, input_stages=6, cluster_k=2)
    assert tiling_problem(before, H200, replace(full, num_stages=6)) is not None
    now = adapted(lower, found(before, full))
    assert (now.tiles[0].m, now.num_stages, now.input_stages) == (48, 6, 6)
    even = replace(full, input_stages=5)
    now = adapted(lower, found(before, even))
    assert now.num_stages == now.input_stages == 6


def test_rings_that_could_have_been_deeper_stay_as_they_were() -> None:
    before, lower = gated(64, 13824, 5120), gated(48, 13824, 5120)
    shallow = tiling_of(64, (72, 80), (64, 128), num_stages=3, input_stages=6, cluster_k=2)
    now = adapted(lower, found(before, shallow))
    assert (now.num_stages, now.input_stages) == (3, 6)


def test_rings_are_shallower_where_tiles_are_higher() -> None:
    before, higher = gated(32, 13824, 5120), gated(64, 13824, 5120)
    full = tiling_of(32, (72, 80), (64, 128), num_stages=8, input_stages=6, cluster_k=2)
    now = adapted(higher, found(before, full))
    assert now.num_stages + now.input_stages < 14


@pytest.mark.parametrize("hints", [{"weight_hint": CacheHint.EVICT_LAST}, {"intermediate_hint": CacheHint.NORMAL}])
def test_what_was_found_with_a_cache_hint_is_tried_without(hints: dict[str, CacheHint]) -> None:
    workload, plain = gated(64, 3584), tiling_of(64, (56, 128), num_stages=4, input_stages=4)
    assert adapted(workload, found(workload, replace(plain, **hints))) == adapted(workload, found(workload, plain))  # type: ignore[arg-type]


def test_hints_of_engines_that_offer_them_stay() -> None:
    workload = gated(64, 3584)
    tiling = Tiling(engine=Engine.MMA, tiles=(Tile(m=64, n=64, k=32),) * 2, num_stages=2, num_warps=4)
    hinted = replace(tiling, weight_hint=CacheHint.EVICT_FIRST)
    assert adapted(workload, found(workload, hinted)).weight_hint is CacheHint.EVICT_FIRST
