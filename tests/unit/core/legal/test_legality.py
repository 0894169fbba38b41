from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, tiling
from tests.support.presets import decoder_block as block_of_a_model
from tuner.core.legal.legality import check_schedule, dynamic_smem_bytes, estimated_registers, tiling_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
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
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.space.mma_tilings import MmaTilings
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

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
        check_schedule(workload, gpu, Schedule.of(tiling=tiles, ordering=order or ordering()))


def both(kind: RasterKind, width: int = 1) -> Ordering:
    raster = Raster(kind=kind, width=width)
    return ordering(rasters=(raster, raster))


def bands(rows: int, kind: InterleaveKind = InterleaveKind.BANDS) -> Ordering:
    return ordering(interleave=Interleave(kind=kind, rows=rows))


def merge(kind: InterleaveKind = InterleaveKind.BANDS, **numbers: int) -> Ordering:
    return ordering(interleave=Interleave(kind=kind, **numbers))


def sync(granularity: Granularity, width: int, *, bands: int = 0) -> Ordering:
    return ordering(bands=bands, granularity=granularity, sync_width=width)


def test_the_plainest_schedule_is_legal_for_every_shape() -> None:
    smallest = tiling((16, 32), (16, 32))
    for m, d_in, d_hidden, d_out in ((1, 1, 1, 1), (7, 5, 3, 2), (16, 4096, 14336, 4096), (3000, 17, 17, 17)):
        workload = ffn_pair(m=m, d_in=d_in, d_hidden=d_hidden, d_out=d_out)
        check_schedule(workload, H200, Schedule.of(tiling=smallest, ordering=ordering()))


def test_unequal_tile_heights_are_legal() -> None:
    check_schedule(PAIR, H200, Schedule.of(tiling=tiling((128, 64), (64, 64)), ordering=ordering(bands=1)))


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
        (tiling((64, 64)), "2 rasters for 1 tiles"),
        (tiling((128, 256), (128, 64), num_stages=6, num_warps=8), "6 stages of 32 spill"),
    ],
)
def test_a_tiling_that_cannot_be_built_is_refused(tiles: Tiling, sentence: str) -> None:
    refused(sentence, tiles=tiles)


def test_a_chain_whose_kernel_spilled_with_six_stages_is_refused_and_one_with_five_is_not() -> None:
    chain = block_of_a_model("llama3-8b", m=512)
    tiles = tuple(Tile(m=128, n=n, k=64) for n in (128, 48, 64, 128))
    spills = Tiling(tiles=tiles, num_stages=6, num_warps=4)
    assert "6 stages of a chain spill" in (tiling_problem(chain, H200, spills) or "")
    assert tiling_problem(chain, H200, replace(spills, num_stages=5)) is None
    assert spills not in MmaTilings(chain, H200).tilings()


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (both(RasterKind.ROW, 2), "raster row of up: width 2 must be 1"),
        (both(RasterKind.PANEL, 1), "raster panel of up: width 1 must be at least 2"),
        (
            both(RasterKind.GROUPED, 8),
            "grouped8 of up on blocks of 8 x 8 tiles is the same as the column raster: use column",
        ),
        (both(RasterKind.PANEL, 4), "panel4 of down on blocks of 8 x 4 tiles is the same as the row raster: use row"),
        (
            replace(bands(1), rasters=both(RasterKind.COLUMN).rasters),
            "blocks of 1 x 8 tiles is the same as the row raster",
        ),
        (bands(0), "bands of 0 rows, lag 0, 1 chunks: use at least 1, 0 and 1"),
        (bands(8), "bands8 over 8 tile rows is the same order as producer_first: use producer_first"),
        (bands(1, InterleaveKind.PRODUCER_FIRST), "producer_first has no bands: rows and lag must be 0 and chunks 1"),
        (ordering(ctas_per_sm=3), "3 CTAs per SM: use 1 to 2"),
        (ordering(reserved_sms=-1), "-1 reserved SMs of 132: use 0 to 131"),
        (ordering(reserved_sms=132), "132 reserved SMs of 132"),
        (ordering(ctas_per_sm=2), "2 CTAs per SM less 0 SMs is a grid of 96 CTAs for 96 tasks: use 1 per SM less 0"),
        (ordering(reserved_sms=4), "1 CTAs per SM less 4 SMs is a grid of 96 CTAs for 96 tasks: use 1 per SM less 0"),
        (ordering(3), "3 rasters for 2 tiles"),
        (both(RasterKind.SNAKE, 0), "raster snake of up: width 0 must be at least 1"),
        (both(RasterKind.SNAKE, 8), "snake8 of up on blocks of 8 x 8 tiles is the same as the row raster: use row"),
        (both(RasterKind.HILBERT, 2), "raster hilbert of up: width 2 must be 1"),
        (both(RasterKind.EXACT, 3), "exact paths are known only up to 4 x 4: use hilbert"),
        (merge(rows=1, lag=8), "bands1-lag8 over 8 tile rows is the same order as producer_first: use producer_first"),
        (merge(rows=1, lag=9), "there are 8 bands, so the lag has no"),
        (merge(rows=1, chunks=3), "3 chunks of 4 tile columns are as wide as 2: use chunks 2"),
        (merge(InterleaveKind.PROPORTIONAL), "proportional mixes independent ops; here one reads another"),
        (
            merge(InterleaveKind.LONGEST_FIRST),
            ("the longest chains already start in the order of the ops: use producer_first"),
        ),
        (merge(InterleaveKind.HALF_ROWS, rows=1), "half_rows has no bands"),
        (ordering(sync_width=2), "sync width 2 of row must be 1"),
        (sync(Granularity.CHUNK, 1), "sync width 1 of chunk must be at least 2"),
        (
            sync(Granularity.CHUNK, 8),
            ("row of 8 tiles is one chunk, so a signal per chunk is the same as a signal per row: use row"),
        ),
        (
            sync(Granularity.STRIDED, 8),
            "stride 8 separates all 8 tiles, so a signal per strided is .* per tile: use tile",
        ),
        (sync(Granularity.BATCH, 8), "all 8 tile rows are one batch, so .* signal per barrier: use barrier"),
        (sync(Granularity.BATCH, 2, bands=1), "bands1 computes down tile row 0 after 1 producer rows, .* wait for 2"),
        (sync(Granularity.BATCH, 4, bands=6), "tile row 0 after 6 producer rows, .* wait for 8: use row"),
        (sync(Granularity.BARRIER, 1, bands=4), "bands4 computes down tile row 0 after 4 .* wait for 8"),
        (ordering(partition=8, assignment=Assignment.STATIC), "a partition of 8 eighths: use 1 to 7"),
        (ordering(partition=4), "a partition needs queues that are filled by stride, not ticket: use static"),
        (
            ordering(partition=4, assignment=Assignment.STEALING),
            "stealing existed in older kernels only: use static, shares, ticket, first_wave",
        ),
        (ordering(partition=4, assignment=Assignment.STATIC), "nothing to partition: 2 ops, 96 tasks, 96 CTAs: use 0"),
        (
            ordering(assignment=Assignment.SHARES),
            ("96 CTAs for 96 tasks: shares would equal the queues of static: use static"),
        ),
    ],
)
def test_an_ordering_that_is_none_or_has_a_plainer_name_is_refused(order: Ordering, sentence: str) -> None:
    refused(sentence, order=order)


def test_two_ctas_on_half_the_sms_are_one_cta_on_all() -> None:
    small = tiling((16, 32), (16, 32))
    refused("2 CTAs per SM less 66 SMs is a grid of 132 CTAs for 768 tasks: use 1 per SM less 0",
            tiles=small, order=ordering(ctas_per_sm=2, reserved_sms=66))  # fmt: skip
    check_schedule(PAIR, H200, Schedule.of(tiling=small, ordering=ordering(ctas_per_sm=2, reserved_sms=4)))


def test_bands_that_complete_the_same_consumer_rows_have_one_name() -> None:
    refused("bands2 over 8 tile rows is the same order as bands1: use bands1",
            tiles=tiling((64, 64), (256, 64), num_warps=8), order=bands(2))  # fmt: skip


def test_bands_are_not_so_narrow_that_there_are_thousands() -> None:
    tall = ffn_pair(m=100_000, d_in=16, d_hidden=16, d_out=16)
    refused("bands6 over 6250 tile rows makes more than 1024 bands: use at least 7 rows",
            tiles=tiling((16, 32), (16, 32)), order=bands(6), workload=tall)  # fmt: skip
    check_schedule(tall, H200, Schedule.of(tiling=tiling((16, 32), (16, 32)), ordering=bands(7)))


def test_signals_per_tile_need_rows_of_several_tiles_that_someone_waits_for() -> None:
    per_tile = ordering(granularity=Granularity.TILE)
    refused("each producer tile row is one tile", tiles=tiling((16, 64), (16, 64)), order=per_tile, workload=TINY_GRID)
    refused("no tile waits", order=per_tile, workload=independent_pair((64, 64, 64), (64, 64, 64)))


def test_two_ctas_per_sm_must_both_fit() -> None:
    roomy = tiling((16, 32), (16, 32), num_stages=8, k=128)
    assert dynamic_smem_bytes(PAIR, roomy) == 8 * (16 + 32) * 128 * 2
    order = ordering(ctas_per_sm=2, assignment=Assignment.STATIC)
    check_schedule(PAIR, H200, Schedule.of(tiling=roomy, ordering=order))
    refused("shared memory of RTX allow 1 such CTAs per SM, not 2", tiles=tiling((16, 32), (16, 32), num_stages=5,
            k=128), order=order, gpu=replace(H200, name="RTX", smem_per_sm_bytes=102_400))  # fmt: skip
    fat = tiling((128, 128), (128, 128), num_warps=8)
    wide = ffn_pair(m=2048, d_in=64, d_hidden=4096, d_out=4096)
    refused("registers of H200 allow 1 such CTAs per SM, not 2", tiles=fat, order=order, workload=wide)


def test_a_gated_op_takes_the_shared_memory_and_registers_of_twice_the_columns() -> None:
    gated = ffn_pair(m=512, d_in=256, d_hidden=512, d_out=256, gated=True)
    narrow, wide = tiling((64, 64), (64, 64), num_warps=8), tiling((64, 128), (64, 64), num_warps=8)
    assert dynamic_smem_bytes(gated, narrow) == dynamic_smem_bytes(PAIR, wide)
    assert estimated_registers(gated, narrow) == estimated_registers(PAIR, wide)
    check_schedule(gated, H200, Schedule.of(tiling=narrow, ordering=ordering()))
    refused("up to 64 x 32, a gate and an up projection wide", workload=gated, tiles=tiling((64, 160), (64, 64)))
    check_schedule(PAIR, H200, Schedule.of(tiling=tiling((64, 160), (64, 64)), ordering=ordering()))
    full = tiling((128, 64), (128, 128), k=128, num_stages=2)
    refused("warp tiles of 64 x 64 with 32 copies", workload=gated, tiles=full)


def test_a_gpu_before_ampere_is_refused() -> None:
    refused("Tesla has compute capability 7.5", gpu=replace(H200, name="Tesla", compute_capability=(7, 5)))


def test_the_largest_warp_tile_is_estimated_to_fit_and_estimates_grow_with_it() -> None:
    sizes = [estimated_registers(PAIR, tiling((m, n), (m, n))) for m, n in ((16, 32), (64, 64), (128, 64), (128, 128))]
    assert sizes == sorted(sizes)
    assert 200 < sizes[-1] <= 255


def test_a_depth_may_differ_between_the_ops() -> None:
    tiles = replace(TILES, tiles=(Tile(m=64, n=64, k=32), Tile(m=64, n=64, k=128)))
    check_schedule(PAIR, H200, Schedule.of(tiling=tiles, ordering=ordering()))


def test_curves_on_narrow_blocks_have_plainer_names() -> None:
    """Blocks of one, two and three tile rows by 8 tile columns."""

    def of(rows: int, kind: RasterKind, width: int = 1) -> Ordering:
        return replace(bands(rows), rasters=both(kind, width).rasters)

    refused("morton of up on blocks of 2 x 8 tiles is the same as the panel2 raster", order=of(2, RasterKind.MORTON))
    refused("hilbert of up on blocks of 2 x 8 tiles is the same as the", order=of(2, RasterKind.HILBERT))
    refused("hilbert of up on blocks of 1 x 8 tiles is the same as the row raster", order=of(1, RasterKind.HILBERT))
    check_schedule(PAIR, H200, Schedule.of(tiling=TILES, ordering=of(3, RasterKind.HILBERT)))


def test_exact_paths_are_legal_on_small_grids_where_they_are_no_other_raster() -> None:
    small = ffn_pair(m=192, d_in=64, d_hidden=192, d_out=192)
    check_schedule(small, H200, Schedule.of(tiling=TILES, ordering=both(RasterKind.EXACT, 4)))
    refused(
        "exact6 of up on blocks of 3 x 3 tiles is the same as the row raster",
        order=both(RasterKind.EXACT, 6),
        workload=small,
    )


def test_a_partition_has_one_name_and_idles_nobody() -> None:
    gpu = replace(H200, num_sms=6)

    def of(eighths: int) -> Ordering:
        return ordering(partition=eighths, assignment=Assignment.STATIC)

    narrow = ffn_pair(m=64, d_in=64, d_hidden=128, d_out=512)
    check_schedule(PAIR, gpu, Schedule.of(tiling=TILES, ordering=of(1)))
    refused("3 eighths of 6 CTAs are 2 for 64 tasks, 4 for 32, the same as with 2: use 2", order=of(3), gpu=gpu)
    refused("4 eighths of 6 CTAs are 3 for 2 tasks, 3 for 8: some CTAs would have no", order=of(4), gpu=gpu,
            workload=narrow)  # fmt: skip
    refused("so bands1 has no effect: use producer_first", order=replace(of(4), interleave=bands(1).interleave),
            gpu=gpu)  # fmt: skip
    equal, two = ffn_pair(m=64, d_in=64, d_hidden=256, d_out=256), replace(H200, num_sms=2)
    refused("the queues of shares: use shares", order=of(1), gpu=two, workload=equal)


def test_mixes_of_independent_ops_are_refused_where_they_are_plainer_orders() -> None:
    pair = independent_pair((512, 256, 64), (64, 256, 512))
    for kind in (InterleaveKind.PROPORTIONAL, InterleaveKind.LONGEST_FIRST):
        check_schedule(pair, H200, Schedule.of(tiling=TILES, ordering=merge(kind)))
    refused("these ops are independent: use proportional", order=merge(InterleaveKind.HALF_ROWS), workload=pair)
    columns = independent_pair((128, 64, 64), (128, 64, 64))
    refused("alternate one by one are the same order as bands of 1 row", order=merge(InterleaveKind.PROPORTIONAL),
            workload=columns)  # fmt: skip


def test_half_rows_need_halves_that_come_between() -> None:
    refused("no half row of one op comes between", order=merge(InterleaveKind.HALF_ROWS), workload=TINY_GRID,
            tiles=tiling((16, 64), (16, 64)))  # fmt: skip
    check_schedule(PAIR, H200, Schedule.of(tiling=TILES, ordering=merge(InterleaveKind.HALF_ROWS)))
