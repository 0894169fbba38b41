from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.lanes import soak_unless, soaked
from tests.support.presets import decoder_block as block_of_a_model
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, PartSums, Tile, Tiling
from tuner.core.space.space import Space
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.search.guesses import seeds
from tuner.search.guesses.seeds import (
    NUM_DRAWN,
    NUM_FORECASTS,
    NUM_GUESSES,
    NUM_SEEDS,
    SLICE_TILES,
    SLICED_ROWS,
    _best_drawn,
    _plain,
    by_slice,
    drawn_guesses,
    forecast_us,
    seed_schedules,
)
from tuner.search.guesses.side_by_side import forms_of, side_by_side
from tuner.search.meanwhile import Calls, Take
from tuner.search.model.pool import canonical


def space(m: int, gpu: str = "h200") -> Space:
    return space_of(ffn_pair(m=m, d_in=1024, d_hidden=4096, d_out=1024), CATALOGUE[gpu])


def seeds_of(here: Space) -> Iterator[Schedule]:
    return seed_schedules(here, lambda: drawn_guesses(here, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*soaked("sliced", "by row"), "independent"])
def test_guesses_of_several_tilings_made_in_advance_are_those_made_one_by_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"sliced": SLICED_ROWS, "by row": 4 * SLICED_ROWS}
    workload = (
        ffn_pair(m=rows[kind], d_in=512, d_hidden=1024, d_out=512)
        if kind in rows
        else independent_pair((512, 512, 512), (512, 256, 512))
    )
    here, begun = space_of(workload, CATALOGUE["h200"]), list[Calls]()

    def begin(calls: Calls) -> Take:
        begun.append(calls)
        done = {name: call() for name, call in calls.items()}
        return done.pop

    monkeypatch.setattr(seeds, "num_forks", lambda: 3)
    ahead = list(seed_schedules(here, tuple, begin))
    assert ahead == list(seed_schedules(here, tuple))
    assert len(begun) == 3
    names = [name for calls in begun for name in calls]
    assert len(names) == len(set(names)) == 2 * len(here.guesses[:NUM_GUESSES]) + 1


def _signal(schedule: Schedule) -> tuple[Granularity, int]:
    return schedule.ordering.granularity, schedule.ordering.sync_width


@pytest.mark.slow
@pytest.mark.parametrize("m", soak_unless(lambda _, m: m == 16, [1, 16, 256]))
def test_the_first_guesses_fill_the_gpu_and_every_engine_is_among_the_others(m: int) -> None:
    here = space(m)
    seeds = list(seeds_of(here))
    tried = here.guesses[:NUM_GUESSES]
    guesses = len(tried)
    in_parts = [one for one in seeds if one.tiling.part_sums is PartSums.SCATTERED]
    assert bool(in_parts) is (m == 256)
    varied = [one for one in seeds[guesses:-NUM_DRAWN] if one not in in_parts]
    strided = [one for one in varied if one.ordering.split_order is SplitOrder.STRIDED]
    assert strided or m == 256  # if no guess splits all its tiles
    assert {seed.tiling for seed in varied} <= set(tried)
    assert {seed.ordering.wait_position for seed in strided} <= {WaitPosition.SLICE}
    [other] = [one for one in varied if one not in strided]
    assert other.tiling.split_k == ()
    by_slice, by_row = (Granularity.CHUNK, SLICE_TILES), (Granularity.ROW, 1)
    few = [one for one in seeds[:guesses] if not one.tiling.split_k]
    assert {_signal(one) for one in few} == {by_slice if m <= SLICED_ROWS else by_row}
    assert _signal(other) == (by_row if m <= SLICED_ROWS else by_slice)
    assert len(seeds) == len(set(seeds)) <= NUM_SEEDS + len(in_parts)
    assert [seed.tiling for seed in seeds[:guesses]] == tried
    plain = {Assignment.STATIC, Assignment.TICKET, Assignment.FIRST_WAVE}
    assert {seed.ordering.assignment for seed in seeds[:guesses]} <= plain
    assert {seed.tiling.engine for seed in seeds[-NUM_DRAWN:]} == {tiling.engine for tiling in here.tilings}
    assert all(map(here.is_legal, seeds))
    assert seeds == list(seeds_of(here))


def test_a_guess_is_there_before_the_others_are_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast: list[Tiling] = []

    def counting(space: Space, candidate: Candidate, limit_us: float = math.inf) -> float:
        assert candidate.schedule is not None
        forecast.append(candidate.schedule.tiling)
        return forecast_us(space, candidate, limit_us)

    monkeypatch.setattr("tuner.search.guesses.seeds.forecast_us", counting)
    here = space(256)
    seeds = seeds_of(here)
    assert forecast == []
    first, second = next(seeds), next(seeds)
    assert set(forecast) == {first.tiling, second.tiling} == set(here.guesses[:2])


def test_the_kernel_of_a_guess_waits_slice_by_slice_with_and_without_parts() -> None:
    here = space_of(ffn_pair(m=96, d_in=5120, d_hidden=13824, d_out=5120, gated=True), CATALOGUE["h100"])
    whole, parts = (next(one for one in here.guesses if bool(one.split_k) is split) for split in (False, True))
    of_whole, of_parts = _plain(here, whole)[0], _plain(here, parts)[0]
    assert {of_whole.ordering.wait_position, of_parts.ordering.wait_position} == {WaitPosition.TASK}
    (sliced,), (strided,) = by_slice(here, of_whole), by_slice(here, of_parts)
    assert sliced == of_whole.but(
        ordering=replace(
            of_whole.ordering,
            granularity=Granularity.CHUNK,
            sync_width=SLICE_TILES,
            wait_position=WaitPosition.SLICE,
        ),
    )
    assert (strided.tiling, strided.ordering.assignment) == (parts, of_parts.ordering.assignment)
    assert strided.ordering.split_order is SplitOrder.STRIDED
    assert strided.ordering.wait_position is WaitPosition.SLICE
    assert here.is_legal(sliced)
    assert here.is_legal(strided)


@pytest.mark.soak
def test_independent_ops_try_their_last_wave_in_even_shares() -> None:
    here = space_of(independent_pair((1024, 1024, 4096), (512, 1024, 2048)), CATALOGUE["h200"])
    seeds = list(seeds_of(here))
    shared = [seed for seed in seeds if seed.ordering.split_tiles is SplitTiles.STREAM]
    (first,) = [seed for seed in shared if seeds.index(seed) == len(here.guesses[:NUM_GUESSES])]
    assert max(first.tiling.split_k) > 1
    assert replace(first.tiling, split_k=()) in {replace(one, split_k=()) for one in here.guesses}
    assert all(map(here.is_legal, seeds))
    assert len(seeds) == len(set(seeds)) <= NUM_SEEDS


# In CI, the test below has a small pair.
@pytest.mark.soak
def test_where_a_column_of_tiles_outgrows_the_l2_a_guess_walks_in_groups() -> None:
    def rasters(m: int) -> set[RasterKind]:
        here = space_of(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), CATALOGUE["h200"])
        best = [_plain(here, tiling)[0] for tiling in here.guesses[:2]]
        return {raster.kind for seed in best for raster in seed.ordering.rasters}

    assert RasterKind.GROUPED in rasters(4096)
    assert RasterKind.GROUPED not in rasters(512)


def test_many_tile_rows_are_walked_in_groups() -> None:
    here = Space(ffn_pair(m=4096, d_in=256, d_hidden=1024, d_out=256), CATALOGUE["h200"])
    tiles = (Tile(m=128, n=128, k=64),) * 2
    (best,) = _plain(here, Tiling(engine=Engine.WGMMA, tiles=tiles, num_stages=4, input_stages=4, num_warps=8))
    assert {raster.kind for raster in best.ordering.rasters} == {RasterKind.GROUPED}


@pytest.mark.slow
def test_a_guess_for_a_chain_has_stages_with_which_the_ring_holds_most_weights_of_all_ops() -> None:
    workload = block_of_a_model("llama3-70b", m=64, tp=8, has_reduce=False)
    here = space_of(workload, CATALOGUE["h200"])
    own, first = here.guesses[0], next(seeds_of(here)).tiling
    assert max(tile.k for tile in own.tiles) == 256
    assert [tile.n for tile in first.tiles] == [tile.n for tile in own.tiles]
    assert {tile.k for tile in first.tiles} == {128}

    def held_bytes(tiling: Tiling) -> int:
        tiles = zip(tiling.tiles, workload.tile_ops, strict=True)
        return tiling.num_stages * min(2 * tile.n * tile.k * op.rows_per_column for tile, op in tiles)

    assert held_bytes(first) > 1.3 * held_bytes(own)
    assert forecast_us(here, fused(next(seeds_of(here)))) < 0.96 * forecast_us(here, fused(_plain(here, own)[0]))


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_a_draw_are_those_with_the_shortest_times_though_a_simulation_stops(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With times and bounds that are drawn, too: the best tiling of each engine, then the next best of all."""
    rng = random.Random(seed)
    tile = Tile(m=16, n=32, k=32)
    engines = [rng.choice(tuple(Engine)) for _ in range(12)]
    tilings = [Tiling(tiles=(tile,), num_stages=2 + n, num_warps=4, engine=one) for n, one in enumerate(engines)]
    drawn = [Schedule.of(rng.choice(tilings), Ordering(rasters=(Raster(),), sync_width=n)) for n in range(1, 41)]
    time_of = {one: rng.uniform(1, 9) for one in drawn}
    bound_of = {one: rng.uniform(0.2, 1) * time_us for one, time_us in time_of.items()}

    def timed(_: object, candidate: Candidate, limit_us: float) -> float:
        assert candidate.schedule is not None
        time_us = time_of[candidate.schedule]
        return time_us if time_us <= limit_us else math.inf

    monkeypatch.setattr(seeds, "in_fewest_launches", lambda _, one: fused(one))
    monkeypatch.setattr(seeds, "least_us", lambda workload, gpu, one: bound_of[one.schedule])
    monkeypatch.setattr(seeds, "forecast_us", timed)
    ranked = list({one.tiling: one for one in sorted(drawn, key=time_of.__getitem__, reverse=True)}.values())
    ranked.sort(key=time_of.__getitem__)
    assert len(ranked) > NUM_DRAWN
    of_engine = {one.tiling.engine: one for one in reversed(ranked)}
    best = sorted(of_engine.values(), key=time_of.__getitem__)
    given: Any = SimpleNamespace(workload=None, gpu=None)
    assert _best_drawn(given, drawn) == list(dict.fromkeys((*best, *ranked)))[:NUM_DRAWN]


# In CI, the test above has drawn times in place of forecasts.
@pytest.mark.soak
@pytest.mark.parametrize(("m", "most"), [(37, NUM_FORECASTS), *soaked((320, 90))])
def test_drawn_guesses_are_those_of_forecasts_of_all_draws_though_fewer_are_simulated(
    m: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, asked = space(m), list[float]()
    drawn = here.sample(random.Random("5/seeds"), NUM_FORECASTS)
    time_of = {one: forecast_us(here, fused(one)) for one in drawn}
    best_of: dict[Tiling, Schedule] = {}
    for one in sorted(drawn, key=time_of.__getitem__):
        best_of.setdefault(one.tiling, one)
    ranked = sorted(best_of.values(), key=time_of.__getitem__)
    engines = {one.tiling.engine: one for one in reversed(ranked)}
    best = sorted(engines.values(), key=ranked.index)

    def counting(space: Space, candidate: Candidate, limit_us: float = math.inf) -> float:
        asked.append(limit_us)
        return forecast_us(space, candidate, limit_us)

    monkeypatch.setattr("tuner.search.guesses.seeds.forecast_us", counting)
    assert drawn_guesses(here, seed=5) == list(dict.fromkeys((*best, *ranked)))[:NUM_DRAWN]
    assert len(asked) <= most


def test_programmatic_launches_of_two_rows_of_high_tiles_are_tried_with_neighbours_first() -> None:
    here = space_of(ffn_pair(m=320, d_in=8192, d_hidden=3584, d_out=8192, gated=True), CATALOGUE["h200"])
    column = Raster(kind=RasterKind.COLUMN)
    high = Tiling(
        engine=Engine.WGMMA,
        tiles=(Tile(m=160, n=64, k=64), Tile(m=160, n=128, k=64)),
        num_stages=6,
        input_stages=6,
        num_warps=8,
        swap_ab=True,
    )
    alone = Schedule.of(high, Ordering(rasters=(column, column), assignment=Assignment.STATIC))
    placed = alone.but(tiling=replace(high, neighbours=2))
    assert here.is_legal(alone)
    assert side_by_side(here, alone) is None
    for kind in (PlanKind.FUSED, PlanKind.TWO_LAUNCHES, PlanKind.TWO_STREAMS):
        assert forms_of(here, kind, alone) == (canonical(kind, alone),)
    for kind in (PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL):
        assert forms_of(here, kind, alone) == (canonical(kind, placed), canonical(kind, alone))
        assert forms_of(here, kind, placed) == (canonical(kind, placed),)
        merged, apart = (
            forecast_us(here, Candidate(plan_kind=kind, schedule=one)) for one in forms_of(here, kind, alone)
        )
        assert merged < apart
    row = Raster(kind=RasterKind.ROW)
    by_row = alone.but(ordering=replace(alone.ordering, rasters=(row, row)))
    in_three = alone.but(tiling=replace(high, tiles=tuple(replace(tile, m=112) for tile in high.tiles)))
    for other in (by_row, in_three):
        assert forms_of(here, PlanKind.FUSED_PDL, other) == (canonical(PlanKind.FUSED_PDL, other),)


# In CI, other tests have guesses of the space.
@pytest.mark.soak
def test_a_space_without_guesses_of_its_own_is_seeded_by_the_forecast_alone() -> None:
    here = space(64, "a40")
    assert here.guesses == []
    assert len(list(seeds_of(here))) == NUM_DRAWN


def test_two_rows_of_low_tiles_have_neighbours() -> None:
    here = space_of(ffn_pair(m=96, d_in=12288, d_hidden=6144, d_out=12288), CATALOGUE["h200"])
    tiles, column = (Tile(m=48, n=96, k=128), Tile(m=48, n=192, k=64)), RasterKind.COLUMN
    low = Tiling(engine=Engine.WGMMA, tiles=tiles, num_stages=6, input_stages=6, num_warps=4)
    ordering = Ordering(rasters=(Raster(kind=column),) * 2, assignment=Assignment.STATIC, reserved_sms=3)
    placed = side_by_side(here, Schedule.of(low, ordering))
    assert placed is not None
    assert (placed.tiling.neighbours, placed.ordering.reserved_sms) == (2, 4)
    assert side_by_side(here, placed) is None
    by_row = replace(ordering, rasters=(Raster(kind=column), Raster(kind=RasterKind.ROW)))
    assert side_by_side(here, Schedule.of(low, by_row)) is None
    in_three = replace(low, tiles=tuple(replace(tile, m=32) for tile in tiles))
    assert side_by_side(here, Schedule.of(in_three, ordering)) is None


# In CI, the test above has two rows of low tiles.
@pytest.mark.soak
def test_first_guesses_with_two_rows_of_low_tiles_have_neighbours() -> None:
    workload = ffn_pair(m=96, d_in=12288, d_hidden=6144, d_out=12288)
    here = space_of(workload, CATALOGUE["h200"])
    column = Raster(kind=RasterKind.COLUMN)
    low = Tiling(
        engine=Engine.WGMMA,
        tiles=(Tile(m=48, n=96, k=128), Tile(m=48, n=192, k=64)),
        num_stages=6,
        input_stages=6,
        num_warps=4,
    )
    ordering = Ordering(rasters=(column, column), assignment=Assignment.STATIC, reserved_sms=3)
    placed = side_by_side(here, Schedule.of(low, ordering))
    assert placed is not None
    assert (placed.tiling.neighbours, placed.ordering.reserved_sms) == (2, 4)
    assert placed in here.neighbours(Schedule.of(low, ordering))
    assert side_by_side(here, placed) is None
    row = Raster(kind=RasterKind.ROW)
    assert side_by_side(here, Schedule.of(low, replace(ordering, rasters=(column, row)))) is None
    low_in_three = replace(low, tiles=tuple(replace(tile, m=32) for tile in low.tiles))
    assert side_by_side(here, Schedule.of(low_in_three, ordering)) is None
    guessed = [tiling for tiling in here.guesses if tiling.tiles[0].m in (48, 64)]
    assert all(one.tiling.neighbours == 2 for one in islice(seeds_of(here), NUM_GUESSES) if one.tiling in guessed)
