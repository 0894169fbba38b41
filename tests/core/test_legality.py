from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.cases import H200, ordering, tiling
from tuner.core.gpu import Gpu
from tuner.core.legality import check_schedule, dynamic_smem_bytes, estimated_registers
from tuner.core.schedule import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    Schedule,
    Tile,
    Tiling,
)
from tuner.core.workload import Workload, ffn_pair, independent_pair
from tuner.errors import IllegalSchedule

#: With 64 x 64 tiles: 8 x 8 and 8 x 4 tiles.
PAIR = ffn_pair(m=512, d_in=256, d_hidden=512, d_out=256)
TILES = tiling((64, 64), (64, 64))
TINY_GRID = ffn_pair(m=16, d_in=256, d_hidden=64, d_out=256)


def refused(
    sentence: str,
    *,
    tiles: Tiling = TILES,
    order: Ordering | None = None,
    workload: Workload = PAIR,
    gpu: Gpu = H200,
) -> None:
    with pytest.raises(IllegalSchedule, match=sentence):
        check_schedule(workload, gpu, Schedule(tiling=tiles, ordering=order or ordering()))


def both(kind: RasterKind, width: int = 1) -> Ordering:
    raster = Raster(kind=kind, width=width)
    return ordering(rasters=(raster, raster))


def bands(rows: int, kind: InterleaveKind = InterleaveKind.BANDS) -> Ordering:
    return ordering(interleave=Interleave(kind=kind, rows=rows))


def test_the_plainest_schedule_is_legal_for_every_shape() -> None:
    smallest = tiling((16, 32), (16, 32))
    for m, d_in, d_hidden, d_out in ((1, 1, 1, 1), (7, 5, 3, 2), (16, 4096, 14336, 4096), (3000, 17, 17, 17)):
        workload = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out)
        check_schedule(workload, H200, Schedule(tiling=smallest, ordering=ordering()))


def test_unequal_tile_heights_are_legal() -> None:
    check_schedule(PAIR, H200, Schedule(tiling=tiling((128, 64), (64, 64)), ordering=ordering(bands=1)))


@pytest.mark.parametrize(
    ("tiles", "sentence"),
    [
        (tiling((24, 64), (64, 64)), "tile 24x64x32: m and n must be positive multiples of 16"),
        (tiling((64, 0), (64, 64)), "tile 64x0x32: m and n must be positive multiples of 16"),
        (tiling((64, 64), (64, 64), k=48), "k must be one of 32, 64, 128"),
        (tiling((16, 32), (16, 32), num_warps=8), "no grid of 8 warps"),
        (tiling((64, 64), (64, 64), num_warps=5), "5 warps: use 4 or 8"),
        (tiling((64, 64), (64, 64), num_stages=1), "1 stages: use 2 to 8"),
        (tiling((64, 64), (64, 64), num_stages=9), "9 stages: use 2 to 8"),
        (tiling((128, 128), (64, 64), num_stages=8, num_warps=8, k=128), "the stages take 524288 bytes"),
        (tiling((64, 64)), "1 tiles for 2 ops"),
    ],
)
def test_a_tiling_that_cannot_be_built_is_refused(tiles: Tiling, sentence: str) -> None:
    refused(sentence, tiles=tiles)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (both(RasterKind.ROW, 2), "raster row of up: width 2 must be 1"),
        (both(RasterKind.PANEL, 1), "raster panel of up: width 1 must be at least 2"),
        (both(RasterKind.GROUPED, 8), "grouped8 of up on blocks of 8 x 8 tiles is the column raster: say column"),
        (both(RasterKind.PANEL, 4), "panel4 of down on blocks of 8 x 4 tiles is the row raster: say row"),
        (replace(bands(1), rasters=both(RasterKind.COLUMN).rasters), "blocks of 1 x 8 tiles is the row raster"),
        (bands(0), "bands of 0 rows: use at least 1"),
        (bands(8), "bands8 over 8 tile rows is the same order as producer_first: say producer_first"),
        (bands(1, InterleaveKind.PRODUCER_FIRST), "producer_first has no bands: rows must be 0"),
        (ordering(ctas_per_sm=3), "3 CTAs per SM: use 1 to 2"),
        (ordering(reserved_sms=-1), "-1 reserved SMs of 132: use 0 to 131"),
        (ordering(reserved_sms=132), "132 reserved SMs of 132"),
        (ordering(ctas_per_sm=2), "2 CTAs per SM less 0 SMs is a grid of 96 CTAs for 96 tasks: say 1 per SM less 0"),
        (ordering(reserved_sms=4), "1 CTAs per SM less 4 SMs is a grid of 96 CTAs for 96 tasks: say 1 per SM less 0"),
        (ordering(3), "3 rasters for 2 ops"),
    ],
)
def test_an_ordering_that_is_none_or_has_a_plainer_name_is_refused(order: Ordering, sentence: str) -> None:
    refused(sentence, order=order)


def test_two_ctas_on_half_the_sms_are_one_cta_on_all() -> None:
    small = tiling((16, 32), (16, 32))
    refused("2 CTAs per SM less 66 SMs is a grid of 132 CTAs for 768 tasks: say 1 per SM less 0",
            tiles=small, order=ordering(ctas_per_sm=2, reserved_sms=66))  # fmt: skip
    check_schedule(PAIR, H200, Schedule(tiling=small, ordering=ordering(ctas_per_sm=2, reserved_sms=4)))


def test_bands_that_complete_the_same_consumer_rows_have_one_name() -> None:
    refused("bands2 over 8 tile rows is the same order as bands1: say bands1",
            tiles=tiling((64, 64), (256, 64), num_warps=8), order=bands(2))  # fmt: skip


def test_bands_are_not_so_narrow_that_there_are_thousands() -> None:
    tall = ffn_pair(m=100_000, d_in=16, d_hidden=16, d_out=16)
    refused("bands6 over 6250 tile rows makes over 1024 bands: use at least 7 rows",
            tiles=tiling((16, 32), (16, 32)), order=bands(6), workload=tall)  # fmt: skip
    check_schedule(tall, H200, Schedule(tiling=tiling((16, 32), (16, 32)), ordering=bands(7)))


def test_signals_per_tile_need_rows_of_several_tiles_that_someone_waits_for() -> None:
    per_tile = ordering(granularity=Granularity.TILE)
    refused("each producer tile row is one tile", tiles=tiling((16, 64), (16, 64)), order=per_tile, workload=TINY_GRID)
    refused("no tile waits", order=per_tile, workload=independent_pair((64, 64, 64), (64, 64, 64)))


def test_two_ctas_per_sm_must_both_fit() -> None:
    roomy = tiling((16, 32), (16, 32), num_stages=8, k=128)
    assert dynamic_smem_bytes(PAIR, roomy) == 8 * (16 + 32) * 128 * 2
    order = ordering(ctas_per_sm=2, assignment=Assignment.STATIC)
    check_schedule(PAIR, H200, Schedule(tiling=roomy, ordering=order))
    refused("shared memory of RTX allow 1 such CTAs per SM, not 2", tiles=tiling((16, 32), (16, 32), num_stages=5,
            k=128), order=order, gpu=replace(H200, name="RTX", smem_per_sm_bytes=102_400))  # fmt: skip
    fat = tiling((128, 128), (128, 128), num_warps=8)
    wide = ffn_pair(m=2048, d_in=64, d_hidden=4096, d_out=4096)
    refused("registers of H200 allow 1 such CTAs per SM, not 2", tiles=fat, order=order, workload=wide)


def test_a_gpu_before_ampere_is_refused() -> None:
    refused("Tesla has compute capability 7.5", gpu=replace(H200, name="Tesla", compute_capability=(7, 5)))


def test_the_largest_warp_tile_is_estimated_to_fit_and_estimates_grow_with_it() -> None:
    sizes = [estimated_registers(tiling((m, n), (m, n))) for m, n in ((16, 32), (64, 64), (128, 64), (128, 128))]
    assert sizes == sorted(sizes)
    assert 200 < sizes[-1] <= 255


def test_a_depth_may_differ_between_the_ops() -> None:
    tiles = replace(TILES, tiles=(Tile(m=64, n=64, k=32), Tile(m=64, n=64, k=128)))
    check_schedule(PAIR, H200, Schedule(tiling=tiles, ordering=ordering()))
