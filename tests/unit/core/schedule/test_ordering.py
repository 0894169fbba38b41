from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import H200, orderings
from tests.support.spaces import space_of
from tuner.core.legal.mma import warp_grid
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.ops.gemm.pairs import ffn_pair

PAIR = ffn_pair(m=512, d_in=4096, d_hidden=4096, d_out=4096)
edges = st.integers(1, 20).map(lambda i: 16 * i)


@pytest.mark.slow
def test_a_schedule_survives_json_with_its_digest() -> None:
    space = space_of(PAIR, H200)
    digests = set()
    for schedule in space.sample(random.Random(0), 40):
        back = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
        assert back == schedule
        assert back.digest == schedule.digest
        digests.add(schedule.digest)
    assert len(digests) == 40


def test_a_schedule_of_an_older_kernel_is_read_as_it_was() -> None:
    tile = Tile(m=64, n=64, k=64)
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=Assignment.STEALING, partition=4)
    old = Schedule.of(tiling=Tiling(tiles=(tile, tile), num_stages=3, num_warps=4), ordering=ordering)
    assert old.to_json()["ordering"]["assignment"] == "stealing"
    assert Schedule.from_json(old.to_json()) == old
    assert "stealing 4/8" in str(old)


@given(orderings(PAIR), orderings(PAIR))
def test_different_orderings_read_differently(a: Ordering, b: Ordering) -> None:
    assert (str(a) == str(b)) == (a == b)


@given(edges, edges, st.sampled_from((4, 8)))
def test_a_warp_grid_cuts_the_tile_into_legal_warp_tiles(m: int, n: int, num_warps: int) -> None:
    grid = warp_grid(Tile(m=m, n=n, k=32), num_warps)
    if grid is None:
        return
    warps_m, warps_n = grid
    assert warps_m * warps_n == num_warps
    assert m % (16 * warps_m) == 0
    assert n % (8 * warps_n) == 0
    assert max(m // warps_m, n // warps_n) <= 64


def test_the_squarest_warp_tile_wins() -> None:
    assert warp_grid(Tile(m=128, n=128, k=32), 4) == (2, 2)
    assert warp_grid(Tile(m=16, n=128, k=32), 4) == (1, 4)
    assert warp_grid(Tile(m=256, n=32, k=32), 8) == (8, 1)
    assert warp_grid(Tile(m=16, n=32, k=32), 8) is None


def test_a_tiling_reads_like_a_log_line() -> None:
    tiling = Tiling(tiles=(Tile(m=16, n=64, k=128), Tile(m=16, n=32, k=128)), num_stages=3, num_warps=8)
    assert str(tiling) == "mma 16x64x128+16x32x128 s3 w8"
    assert tiling.num_threads == 256
    assert str(replace(tiling, split_k=(1, 4))) == "mma 16x64x128+16x32x128 s3 w8 split1+4"


def test_a_digest_outlives_axes_that_came_later() -> None:
    """The digest was recorded before lag, chunks, sync widths and partitions existed."""
    tile = Tile(m=16, n=64, k=128)
    bands = Interleave(kind=InterleaveKind.BANDS, rows=2)
    schedule = Schedule.of(
        tiling=Tiling(tiles=(tile, tile), num_stages=3, num_warps=8),
        ordering=Ordering(rasters=(Raster(), Raster(kind=RasterKind.PANEL, width=4)), interleave=bands),
    )
    assert schedule.digest == "331c611c04a6a3fe"
    later = schedule.but(ordering=replace(schedule.ordering, sync_width=2, granularity=Granularity.CHUNK))
    assert "sync_width" in later.to_json()["ordering"]
    assert "sync_width" not in schedule.to_json()["ordering"]
    assert "split_k" not in schedule.to_json()["tiling"]
    split = schedule.but(tiling=replace(schedule.tiling, split_k=(1, 2)))
    assert Schedule.from_json(json.loads(json.dumps(split.to_json()))) == split
    assert split.digest != schedule.digest


def test_a_wgmma_tiling_tells_its_rings_and_counts_the_warps_that_copy() -> None:
    tile = Tile(m=16, n=112, k=128)
    tiling = Tiling(engine=Engine.WGMMA, tiles=(tile, tile), num_stages=6, num_warps=4, input_stages=3, window=4)
    assert str(tiling) == "wgmma 16x112x128+16x112x128 s6 i3 window4 w4"
    assert tiling.num_threads == 256
    schedule = Schedule.of(tiling=tiling, ordering=Ordering(rasters=(Raster(), Raster())))
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    plain = schedule.but(tiling=replace(tiling, window=0, input_stages=0))
    assert {"input_stages", "window"} & plain.to_json()["tiling"].keys() == set()
    assert Schedule.from_json(plain.to_json()) == plain
