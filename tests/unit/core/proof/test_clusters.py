"""Clusters of CTAs: which tiles they can compute, and how many of them a GPU holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, small_gpu, wgmma
from tuner.core.legal.legality import check_schedule, dynamic_smem_bytes, estimated_resources
from tuner.core.legal.wgmma import shares, sum_exchanges
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.order.split_k import num_split_tiles, slot_bytes
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.verify import recheck, verify
from tuner.core.schedule.ordering import Assignment, Ordering
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Epilogue, Tiling, Warpgroups
from tuner.errors import IllegalSchedule, ResourceError
from tuner.ops.gemm.pairs import ffn_pair

PAIR = ffn_pair(m=256, d_in=4096, d_hidden=14336, d_out=4096)


def check(tiling: Tiling, order: Ordering | None = None) -> None:
    check_schedule(PAIR, H200, Schedule.of(tiling=tiling, ordering=order or ordering()))


@pytest.mark.parametrize(
    "tiling",
    [
        wgmma((16, 128, 64), cluster_n=2),
        wgmma((16, 256, 128), cluster_n=4, num_stages=6),
        wgmma((128, 448, 64), (128, 512, 64), num_warps=8, cluster_n=2),
        wgmma((256, 256, 64), num_warps=8, cluster_m=2),
        wgmma((512, 128, 64), num_warps=8, cluster_m=2, input_stages=2),
        wgmma((256, 512, 64), num_warps=8, cluster_m=2, cluster_n=2),
        wgmma((64, 32, 64), num_stages=6, cluster_m=4),
        wgmma((64, 16, 128), num_stages=6, cluster_m=4),
        wgmma((16, 256, 64), num_stages=6, cluster_k=4),
        wgmma((64, 16, 512), cluster_k=2, num_stages=2, input_stages=2),
        wgmma((128, 256, 64), num_warps=8, cluster_k=2, num_stages=3, input_stages=3),
        wgmma((64, 256, 64), cluster_n=2, cluster_k=2),
    ],
    ids=str,
)
def test_what_each_cta_can_compute_and_bring_its_slice_of_is_legal(tiling: Tiling) -> None:
    check(tiling)


@pytest.mark.parametrize(
    ("tiling", "sentence"),
    [
        (wgmma((64, 96, 64), cluster_n=3), "clusters of 1 x 3 CTAs: use 1, 2, 4 along m and n, up to 4 in all"),
        (wgmma((64, 64, 64), cluster_m=0), "clusters of 0 x 1 CTAs: use 1, 2, 4 along m and n, up to 4 in all"),
        (wgmma((256, 128, 64), cluster_m=2, cluster_n=4), "clusters of 2 x 4 CTAs: use 1, 2, 4"),
        (wgmma((64, 72, 64), (64, 73, 64), cluster_n=2), "tile 64x73x64: 1 x 2 CTAs cannot split it evenly"),
        (wgmma((64, 72, 64), cluster_n=2), r"tile 64x36x64: n must be a positive multiple of 8 \(of one CTA of 1x2\)"),
        (wgmma((128, 64, 64), num_warps=8, cluster_m=2), r"tile 64x64x64: m of 8 warps must be .* CTA of 2x1\)"),
        (wgmma((128, 1024, 64), num_warps=8, cluster_n=2), "tile 128x512x64: 512 rows of W; one instruction takes"),
        (wgmma((16, 256, 64), cluster_n=4), "4 CTAs share its inputs, 16 rows of 1 lines: each must load whole lines"),
        (wgmma((128, 24, 64), cluster_m=2), "2 CTAs share its weights, 24 rows of 1 lines: .* a multiple of 8 rows"),
        (
            wgmma((256, 256, 64), num_warps=8, cluster_m=2, split_k=(1, 2)),
            "tile 128x256x64: 128 sums per thread spill if CTAs share weights and add parts: use at most 112",
        ),
        (
            replace(wgmma((64, 64, 64), cluster_n=2), engine=Engine.MMA),
            "1 x 2 CTAs: not supported by the mma engine; use 1",
        ),
        (
            replace(wgmma((64, 64, 64), cluster_k=2), engine=Engine.MMA),
            "1 x 1 x 2 CTAs: not supported by the mma engine; use",
        ),
        (wgmma((64, 96, 64), cluster_k=3), "clusters of 1 x 1 x 3 CTAs: use 1, 2, 4 along m, n and k, up to 4 in all"),
        (wgmma((64, 96, 64), cluster_k=8), "clusters of 1 x 1 x 8 CTAs: use 1, 2, 4 along m, n and k, up to 4 in all"),
        (wgmma((64, 96, 64), cluster_n=2, cluster_k=4), "clusters of 1 x 2 x 4 CTAs: use 1, 2, 4 along m, n and k"),
        (wgmma((64, 24, 64), cluster_k=4), "tile 64x24x64: 4 CTAs split its K, and each must finish 8 of its columns"),
        (
            wgmma((64, 64, 64), cluster_k=2, split_k=(1, 2)),
            "parts of tiles when 2 CTAs split a tile's K: use an empty split_k, or cluster_k 1",
        ),
        (
            wgmma((64, 64, 64), num_warps=8, cluster_k=2, warpgroups=Warpgroups.PING_PONG),
            "ping-pong when 2 CTAs split a tile's K: use cooperative",
        ),
        (
            wgmma((64, 64, 64), cluster_k=2, epilogue=Epilogue.TMA),
            "epilogue tma when 2 CTAs split a tile's K, and each stores a share: use direct",
        ),
        (
            wgmma((128, 256, 64), num_warps=8, cluster_k=4, num_stages=4, input_stages=5),
            "the stages take 238144 bytes; a CTA on H200 has 232448",
        ),
    ],
)
def test_a_cluster_that_cannot_be_built_is_refused(tiling: Tiling, sentence: str) -> None:
    with pytest.raises(IllegalSchedule, match=sentence):
        check(tiling)


def test_a_cta_of_a_cluster_takes_what_its_own_tile_takes() -> None:
    alone, cluster = wgmma((128, 224, 64), num_warps=8), wgmma((256, 448, 64), num_warps=8, cluster_m=2, cluster_n=2)
    assert cluster.cta_tiles == alone.tiles
    assert dynamic_smem_bytes(PAIR, cluster) == dynamic_smem_bytes(PAIR, alone)
    assert estimated_resources(PAIR, cluster) == replace(estimated_resources(PAIR, alone), cluster_size=4)


def test_each_cta_that_shares_a_tile_s_k_has_a_step_of_it() -> None:
    pair = ffn_pair(m=64, d_in=192, d_hidden=256, d_out=128)
    tilings = [wgmma((64, 64, 64), cluster_k=sharers) for sharers in (2, 4)]
    check_schedule(pair, H200, Schedule.of(tiling=tilings[0], ordering=ordering()))
    with pytest.raises(IllegalSchedule, match="4 CTAs split the K of up: use at most one for each of 3 k-steps of 64"):
        check_schedule(pair, H200, Schedule.of(tiling=tilings[1], ordering=ordering()))


@pytest.mark.parametrize(
    ("columns", "sharers", "expected"),
    [
        (256, 4, [64, 64, 64, 64]),
        (176, 2, [96, 80]),
        (112, 2, [64, 48]),
        (96, 4, [24, 24, 24, 24]),
        (88, 4, [16, 24, 24, 24]),
        (24, 2, [8, 16]),
    ],
)
def test_ctas_that_share_a_tile_s_k_finish_about_as_many_columns(
    columns: int, sharers: int, expected: list[int]
) -> None:
    assert shares(columns, sharers) == expected


@pytest.mark.parametrize(
    ("tile", "sharers", "exchanges", "expected"),
    [
        ((16, 16, 64), 2, 1, 2 * 16 * 8),  # a share is a single vector
        ((16, 24, 64), 2, 2, 16 * 16),
        ((64, 128, 64), 2, 2, 64 * 64),
        ((64, 128, 64), 4, 2, 3 * 64 * 32),
        ((64, 256, 64), 2, 3, 2 * 64 * 48),
        ((64, 256, 64), 4, 4, 3 * 64 * 32),
        ((128, 256, 64), 2, 6, 2 * 128 * 24),
        ((128, 256, 64), 4, 8, 2 * 3 * 128 * 8),
        ((256, 96, 64), 2, 4, 2 * 128 * 24),
        ((128, 200, 64), 4, 8, 2 * 3 * 128 * 8),  # of 8, 4, 8 and 5 vectors
        ((192, 64, 64), 4, 2, 2 * 3 * 192 * 8),  # more than 24 KB, with one vector per exchange
    ],
)
def test_sums_of_the_others_come_in_as_few_exchanges_as_fit_24_kb(
    tile: tuple[int, int, int], sharers: int, exchanges: int, expected: int
) -> None:
    pair = ffn_pair(m=256, d_in=1024, d_hidden=1024, d_out=1024)
    num_warps = {192: 12}.get(tile[0], 4 if tile[0] <= 64 else 8)
    alone, sharing = (wgmma(tile, cluster_k=k, num_warps=num_warps) for k in (1, sharers))
    assert sum_exchanges(pair.tile_ops[0], sharing.tiles[0], sharing) == (exchanges, expected * 4 // 2)
    two_barriers_each = 2 * 16
    assert dynamic_smem_bytes(pair, sharing) - dynamic_smem_bytes(pair, alone) == expected * 4 + two_barriers_each


def test_sums_of_a_gate_and_an_up_projection_both_travel() -> None:
    plain, gated = (
        ffn_pair(m=64, d_in=1024, d_hidden=1024, d_out=1024, gated=gated).tile_ops[0] for gated in (False, True)
    )
    sharing = wgmma((64, 128, 64), cluster_k=2)
    assert [sum_exchanges(op, sharing.tiles[0], sharing) for op in (plain, gated)] == [
        (2, 64 * 32 * 4),
        (3, 64 * 48 * 4),
    ]
    swapped = replace(wgmma((64, 32, 64), cluster_k=2), swap_ab=True)
    assert [sum_exchanges(op, swapped.tiles[0], swapped) for op in (plain, gated)] == [
        (2, 32 * 16 * 4),
        (2, 64 * 16 * 4),
    ]


def test_who_shares_a_tile_s_k_sees_the_same_tiles_and_plan() -> None:
    alone, sharing = (wgmma((64, 128, 64), cluster_k=k) for k in (1, 2))
    assert sharing.cta_tiles == alone.cta_tiles == alone.tiles
    order = ordering(reserved_sms=66)
    plans = [make_plan(tile_graph(PAIR, alone), order, H200), make_plan(tile_graph(PAIR, sharing), ordering(), H200)]
    assert plans[0].num_ctas == plans[1].num_ctas == 66
    assert (plans[0].words == plans[1].words).all()


def test_parts_of_a_split_tile_meet_cta_by_cta() -> None:
    alone = wgmma((64, 128, 64), split_k=(1, 4))
    cluster = wgmma((128, 256, 64), split_k=(1, 4), cluster_m=2, cluster_n=2)
    assert num_split_tiles(PAIR, alone) == 4 * num_split_tiles(PAIR, cluster) == 4 * 32
    assert 4 * slot_bytes(PAIR, alone) == slot_bytes(PAIR, cluster)


@pytest.mark.parametrize(
    ("cluster_size", "reserved_sms", "expected"),
    [
        (1, 0, 132),
        (1, 4, 128),
        (2, 0, 66),
        (2, 1, 65),
        (2, 4, 64),
        (4, 0, 24),
        (4, 4, 24),
        (4, 35, 24),
        (4, 37, 23),
        (4, 129, 0),
    ],
)
def test_a_cluster_lies_in_one_gpc(cluster_size: int, reserved_sms: int, expected: int) -> None:
    assert H200.num_clusters(cluster_size, reserved_sms) == expected


def test_no_more_clusters_than_sms_whatever_the_gpu() -> None:
    for gpu in (*CATALOGUE.values(), small_gpu(1), small_gpu(5)):
        for size in (1, 2, 4):
            assert 0 <= gpu.num_clusters(size) * size <= gpu.num_sms


@pytest.mark.parametrize(("cluster_n", "num_ctas"), [(1, 132), (2, 66), (4, 24)])
def test_a_plan_has_a_queue_for_each_cluster(cluster_n: int, num_ctas: int) -> None:
    tiling = wgmma((64, 64 * cluster_n, 64), cluster_n=cluster_n)
    order = ordering(assignment=Assignment.STATIC)
    check(tiling, order)
    graph = tile_graph(PAIR, tiling)
    plan = make_plan(graph, order, H200)
    assert plan.num_ctas == num_ctas == plan.queues.size - 1
    resources = estimated_resources(PAIR, tiling)
    recheck(verify(plan, graph, resources, H200), resources)
    if cluster_n > 1:
        with pytest.raises(ResourceError, match=f"the grid has {num_ctas} clusters of {cluster_n} CTAs, but 28 SMs"):
            verify(plan, graph, resources, small_gpu(28))


def test_reserved_sms_that_take_no_cluster_away_are_a_second_name() -> None:
    tiling = wgmma((64, 256, 64), cluster_n=4)
    with pytest.raises(
        IllegalSchedule, match="1 CTAs per SM less 4 SMs is a grid of 24 clusters of 4 CTAs for 288 tas"
    ):
        check(tiling, ordering(reserved_sms=4))
    check(tiling, ordering(reserved_sms=40))
    with pytest.raises(IllegalSchedule, match="129 reserved SMs of 132: use 0 to 128"):
        check(tiling, ordering(reserved_sms=129))


def test_a_cluster_is_said_and_kept() -> None:
    schedule = Schedule.of(tiling=wgmma((64, 128, 64), cluster_n=2), ordering=ordering())
    assert str(schedule.tiling).endswith("w4 cluster1x2")
    assert Schedule.from_json(schedule.to_json()) == schedule
    sharing = Schedule.of(tiling=wgmma((64, 128, 64), cluster_k=2), ordering=ordering())
    assert str(sharing.tiling).endswith("w4 cluster1x1x2")
    assert Schedule.from_json(sharing.to_json()) == sharing
    plain = Schedule.of(tiling=wgmma((64, 128, 64)), ordering=ordering())
    assert not {"cluster_m", "cluster_n", "cluster_k"} & set(plain.to_json()["tiling"])
    assert len({schedule.digest, sharing.digest, plain.digest}) == 3
