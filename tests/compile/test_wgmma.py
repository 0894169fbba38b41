"""The warp-specialised engine without a GPU: it compiles without warnings, and host and device agree on layouts."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest

from tests.support.cases import H200
from tests.support.compiled import compile_source
from tests.support.lanes import each_value_once, one_in, soaked
from tests.support.reports import report_of
from tuner.core.legal.wgmma import (
    COLUMNS,
    FLAG_BYTES,
    MAX_PRODUCT_COLUMNS,
    received_bytes,
    shares,
    smem_bytes,
    sum_exchanges,
)
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.core.space.wgmma_tilings import WgmmaTilings
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.launch_args import MAP_BYTES, extend_args, first_tasks, parameter_layout
from tuner.workers.source.render import render
from tuner.workers.source.tensor_maps import tensor_maps

ALL = {"bias": True, "gated": True, "residual": True, "row_scale": True}
PAIR = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.RELU)
GATED = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.GELU, **ALL)
RAGGED = ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.SILU, bias=True, dtype=Dtype.BF16)

TURNS = Warpgroups.PING_PONG
TMA = Epilogue.TMA


def tiling(
    tiles: tuple[tuple[int, int, int], ...],
    stages: int,
    input_stages: int,
    split_k: tuple[int, ...] = (),
    window: int = 0,
    cluster: tuple[int, ...] = (1, 1),
    warpgroups: Warpgroups = Warpgroups.COOPERATIVE,
    swapped_warps: int = 0,
    epilogue: Epilogue = Epilogue.DIRECT,
) -> Tiling:
    return Tiling(
        engine=Engine.WGMMA,
        tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles),
        num_stages=stages,
        input_stages=input_stages,
        num_warps=swapped_warps or (8 if warpgroups is TURNS or max(m for m, _, _ in tiles) // cluster[0] > 64 else 4),
        swap_ab=swapped_warps > 0,
        split_k=split_k,
        window=window,
        warpgroups=warpgroups,
        epilogue=epilogue,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        cluster_k=cluster[2] if len(cluster) > 2 else 1,
    )


CASES = [
    (PAIR, tiling(((16, 112, 128), (16, 128, 128)), 6, 4, (1, 4))),
    (PAIR, tiling(((16, 48, 256), (16, 16, 512)), 4, 3)),
    (PAIR, tiling(((64, 112, 64), (64, 128, 64)), 9, 7, (1, 4), 4)),
    (PAIR, tiling(((64, 256, 64), (64, 256, 64)), 5, 4, (2, 8))),
    (PAIR, tiling(((128, 224, 64), (128, 256, 64)), 4, 4, (1, 2))),
    (PAIR, tiling(((128, 224, 64), (128, 256, 64)), 4, 4, (4, 4))),
    (PAIR, tiling(((256, 112, 64), (128, 128, 64)), 4, 2)),
    (GATED, tiling(((16, 112, 64), (16, 128, 64)), 6, 4, (1, 4))),
    (GATED, tiling(((64, 64, 128), (64, 128, 64)), 5, 4, (2, 4))),
    (GATED, tiling(((128, 128, 64), (128, 256, 64)), 4, 4)),
    (RAGGED, tiling(((128, 176, 64), (128, 128, 64)), 4, 4, (1, 4))),
    (PAIR, tiling(((16, 56, 128), (16, 24, 256)), 8, 4, (1, 2))),
    (GATED, tiling(((64, 56, 128), (64, 24, 64)), 5, 4)),
    (PAIR, tiling(((64, 224, 128), (64, 256, 64)), 4, 4, (1, 2), 2, (1, 2))),
    (PAIR, tiling(((128, 448, 64), (128, 512, 64)), 4, 4, (1, 2), cluster=(1, 2))),
    (PAIR, tiling(((256, 256, 64), (256, 256, 64)), 4, 4, cluster=(2, 1))),
    (PAIR, tiling(((256, 512, 64), (256, 512, 64)), 4, 4, cluster=(2, 2))),
    (GATED, tiling(((64, 256, 128), (64, 256, 64)), 5, 4, (2, 4), cluster=(1, 4))),
    (RAGGED, tiling(((128, 352, 64), (128, 256, 64)), 4, 4, (1, 4), cluster=(1, 2))),
    (PAIR, tiling(((16, 112, 128), (16, 128, 128)), 6, 4, (1, 4), warpgroups=TURNS)),
    (PAIR, tiling(((64, 224, 64), (128, 112, 64)), 4, 4, (1, 4), warpgroups=TURNS)),
    (GATED, tiling(((64, 128, 64), (64, 256, 64)), 4, 4, warpgroups=TURNS)),
    (GATED, tiling(((128, 56, 128), (128, 112, 64)), 3, 3, (1, 4), warpgroups=TURNS)),
    (GATED, tiling(((128, 224, 64), (128, 448, 64)), 4, 4, cluster=(2, 2), warpgroups=TURNS)),
    (RAGGED, tiling(((128, 112, 64), (64, 112, 64)), 4, 4, (1, 4), window=2, warpgroups=TURNS)),
    (PAIR, tiling(((8, 112, 128), (8, 64, 256)), 6, 4, (1, 4), swapped_warps=4)),
    (PAIR, tiling(((256, 64, 64), (256, 64, 64)), 5, 5, (1, 2), swapped_warps=4)),
    (PAIR, tiling(((224, 112, 64), (224, 128, 64)), 4, 4, (2, 2), swapped_warps=8)),
    (PAIR, tiling(((192, 144, 64), (192, 192, 64)), 3, 3, swapped_warps=12)),
    (PAIR, tiling(((136, 144, 64), (136, 192, 64)), 4, 4, (1, 2), swapped_warps=12)),
    (GATED, tiling(((192, 32, 64), (192, 64, 64)), 6, 6, swapped_warps=4)),
    (GATED, tiling(((96, 112, 64), (96, 128, 64)), 5, 5, (1, 2), swapped_warps=8)),
    (RAGGED, tiling(((200, 64, 64), (104, 128, 64)), 5, 5, (3, 2), swapped_warps=4)),
    (GATED, tiling(((128, 128, 64), (128, 256, 64)), 4, 4, cluster=(2, 2), swapped_warps=8)),
    (PAIR, tiling(((96, 64, 64), (96, 128, 64)), 5, 5, swapped_warps=8, warpgroups=TURNS)),
    (PAIR, tiling(((64, 256, 64), (64, 256, 64)), 4, 3, (2, 8), epilogue=TMA)),
    (PAIR, tiling(((128, 224, 64), (128, 256, 64)), 4, 4, (4, 4), epilogue=TMA)),
    (PAIR, tiling(((128, 448, 64), (128, 512, 64)), 4, 4, (1, 2), cluster=(1, 2), epilogue=TMA)),
    (PAIR, tiling(((256, 256, 64), (256, 256, 64)), 4, 4, cluster=(2, 1), epilogue=TMA)),
    (GATED, tiling(((16, 112, 64), (16, 128, 64)), 6, 4, (1, 4), epilogue=TMA)),
    (GATED, tiling(((128, 128, 64), (128, 256, 64)), 4, 4, epilogue=TMA)),
    (GATED, replace(tiling(((192, 96, 64), (192, 192, 64)), 3, 3, epilogue=TMA), num_warps=12)),
    (GATED, tiling(((64, 128, 64), (64, 256, 64)), 4, 4, warpgroups=TURNS, epilogue=TMA)),
    (GATED, tiling(((128, 224, 64), (128, 448, 64)), 4, 4, cluster=(2, 2), warpgroups=TURNS, epilogue=TMA)),
    (RAGGED, tiling(((128, 176, 64), (128, 128, 64)), 4, 4, (1, 4), epilogue=TMA)),
    (RAGGED, tiling(((128, 112, 64), (64, 112, 64)), 4, 4, (1, 4), window=2, warpgroups=TURNS, epilogue=TMA)),
    (PAIR, tiling(((16, 224, 128), (16, 256, 64)), 6, 4, cluster=(1, 1, 2))),
    (PAIR, tiling(((64, 256, 64), (64, 256, 64)), 4, 3, cluster=(1, 1, 4))),
    (PAIR, tiling(((256, 256, 64), (256, 224, 64)), 3, 3, cluster=(2, 1, 2))),
    (GATED, tiling(((64, 88, 64), (64, 176, 64)), 4, 4, cluster=(1, 1, 4))),
    (GATED, tiling(((128, 112, 64), (128, 256, 64)), 3, 3, cluster=(1, 1, 2))),
    (RAGGED, tiling(((64, 448, 64), (64, 256, 64)), 3, 3, window=2, cluster=(1, 2, 2))),
    (GATED, tiling(((192, 32, 64), (192, 64, 64)), 4, 4, cluster=(1, 1, 2), swapped_warps=4)),
    (RAGGED, tiling(((136, 192, 64), (136, 160, 64)), 2, 2, cluster=(1, 1, 4), swapped_warps=12)),
    (PAIR, tiling(((256, 192, 64), (256, 192, 64)), 4, 4)),
    (GATED, tiling(((256, 88, 64), (256, 176, 64)), 4, 4)),
    (RAGGED, tiling(((512, 176, 64), (512, 160, 64)), 3, 3, cluster=(2, 1))),
    (GATED, tiling(((512, 96, 64), (256, 256, 64)), 3, 3, cluster=(2, 1))),
    (PAIR, tiling(((256, 192, 64), (128, 256, 64)), 3, 3)),
    (GATED, tiling(((192, 128, 64), (192, 256, 64)), 4, 4, swapped_warps=8)),
    (GATED, tiling(((192, 64, 64), (192, 128, 64)), 5, 5, swapped_warps=4)),
]


#: Startup prefetches of lines, of whole stages, and of pairs of a gate and an up projection, for one CTA and for CTAs
#: that share them.
CASES += [(workload, replace(chosen, startup_prefetch=8)) for workload, chosen in (*CASES[::5], CASES[33], CASES[43])]


#: tests/soak/kernels.py compiles every case, with and without stamps; the code of the stamps is the same in each.
SOME, TRACED = CASES[::28], CASES[1::40]


@pytest.mark.parametrize(("workload", "chosen"), SOME, ids=str)
def test_it_compiles_without_spills_or_warnings(workload: Workload, chosen: Tiling) -> None:
    resources = report_of(render(workload, chosen), "sm_90a").resources
    assert resources.warnings == ()
    assert resources.spill_bytes == 0
    assert resources.registers_per_thread <= most_registers(chosen)


@pytest.mark.parametrize(("workload", "chosen"), TRACED, ids=str)
def test_it_compiles_with_stamps(workload: Workload, chosen: Tiling) -> None:
    """Stamps take registers, so the kernel may spill; a traced build is never timed."""
    resources = report_of(render(workload, chosen, traced=True), "sm_90a").resources
    assert resources.registers_per_thread <= most_registers(chosen)


def most_registers(chosen: Tiling) -> int:
    return 168 if chosen.num_threads == 384 else 255


def asserted(workload: Workload, chosen: Tiling, asserts: list[str]) -> None:
    """Checks static assertions on the device's constants; nothing is instantiated, so it takes no time."""
    declarations, entry, _ = render(workload, chosen).partition('extern "C" __global__')
    assert entry
    compile_source("\n".join([declarations, *asserts]), "sm_90a")


def shared(sharers: int, swapped_warps: int) -> Tiling:
    """A tiling whose CTAs split the K of their tiles, and whose columns cannot be shared equally."""
    tiles = ((40, 88, 64), (48, 176 if swapped_warps else 200, 64))
    return tiling(tiles, 2, 2, cluster=(1, 1, sharers), swapped_warps=swapped_warps)


@pytest.mark.slow
@pytest.mark.parametrize(("sharers", "swapped_warps"), each_value_once([2, 4], [0, 4, 8]))
def test_the_host_cuts_a_tile_into_shares_as_the_device_does(sharers: int, swapped_warps: int) -> None:
    chosen = shared(sharers, swapped_warps)
    asserts = [f"static_assert(SharedLayout::kFlags + {FLAG_BYTES} == {smem_bytes(GATED, chosen)});"]
    for groups in range(sharers, MAX_PRODUCT_COLUMNS // COLUMNS + 1):
        bounds = [0, *accumulate(columns // COLUMNS for columns in shares(COLUMNS * groups, sharers))]
        unit = f"share_unit({groups}, {sharers})"
        asserts += [
            f"static_assert(groups_before({groups}, {r}, {unit}, {sharers}) == {b});" for r, b in enumerate(bounds)
        ]
        asserts += [
            f"static_assert(largest_share({groups}, {unit}, {sharers}) == {max(b - a for a, b in pairwise(bounds))});"
        ]
        assert bounds[-1] == groups
        assert all(a < b for a, b in pairwise(bounds))
    asserted(GATED, chosen, asserts)


#: Tilings whose CTAs split K, with the number of exchanges of each op's sums.
EXCHANGES = [
    (GATED, tiling(((16, 8, 64), (16, 24, 64)), 2, 2, cluster=(1, 1, 2), swapped_warps=4), (1, 1)),
    (GATED, tiling(((64, 40, 64), (64, 16, 64)), 2, 2, cluster=(1, 1, 2)), (2, 1)),
    (GATED, tiling(((128, 112, 64), (128, 128, 64)), 3, 3, cluster=(1, 1, 2)), (6, 3)),
    (GATED, tiling(((256, 56, 64), (256, 128, 64)), 3, 3, cluster=(1, 1, 2)), (6, 6)),
    (GATED, tiling(((256, 56, 64), (256, 112, 64)), 3, 3, cluster=(1, 1, 2), swapped_warps=8), (6, 6)),
    (GATED, replace(tiling(((128, 112, 64), (128, 128, 64)), 3, 3, cluster=(1, 1, 2)), sum_kib=64), (2, 2)),
    (GATED, replace(tiling(((256, 56, 64), (256, 128, 64)), 3, 3, cluster=(1, 1, 2)), sum_kib=32), (4, 4)),
    (PAIR, tiling(((128, 176, 64), (128, 200, 64)), 3, 2, cluster=(1, 1, 4)), (6, 8)),
    (RAGGED, tiling(((136, 192, 64), (136, 160, 64)), 2, 2, cluster=(1, 1, 4), swapped_warps=12), (5, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "chosen", "exchanges"), one_in(3, EXCHANGES), ids=str)
def test_the_host_counts_exchanges_and_their_bytes_as_the_device_does(
    workload: Workload, chosen: Tiling, exchanges: tuple[int, ...]
) -> None:
    counted = [sum_exchanges(op, tile, chosen) for op, tile in zip(workload.tile_ops, chosen.tiles, strict=True)]
    assert tuple(count for count, _ in counted) == exchanges
    asserts = [f"static_assert(SharedLayout::kFlags + {FLAG_BYTES} == {smem_bytes(workload, chosen)});"]
    for op, (count, num_bytes) in enumerate(counted):
        asserts += [f"static_assert(SumLayout<{op}>::kExchanges == {count});"]
        asserts += [f"static_assert((kClusterK - 1) * SumLayout<{op}>::kSourceBytes == {num_bytes});"]
    asserts += [f"static_assert(SumRing::kDataBytes == {received_bytes(workload, chosen)});"]
    asserted(workload, chosen, asserts)


#: tests/soak/kernels.py compiles them all.
SUMS = [
    *((GATED, shared(sharers, warps)) for sharers in (2, 4) for warps in (0, 4, 8)),
    *((workload, chosen) for workload, chosen, _ in EXCHANGES),
]


@pytest.mark.parametrize(("workload", "chosen"), SUMS[::9], ids=str)
def test_sums_in_a_cluster_compile_without_spills_or_warnings(workload: Workload, chosen: Tiling) -> None:
    resources = report_of(render(workload, chosen), "sm_90a").resources
    assert (resources.warnings, resources.spill_bytes) == ((), 0)


def gated_of(m: int) -> Workload:
    """A gated pair with every option and the given number of rows."""
    return replace(GATED, ops=tuple(replace(op, m=m) for op in GATED.tile_ops))


def each_shape_once(workload: Workload) -> list[Tiling]:
    """A subset of the offered tilings that contains every combination of tile, splitting and store of each op."""
    offered, seen, chosen = list(WgmmaTilings(workload, H200).tilings()), set[object](), []
    for fewest in (2, 1):
        for tiling in offered:
            shapes = {(op, tile, tiling.num_parts(op) > 1, tiling.epilogue) for op, tile in enumerate(tiling.tiles)}
            if len(shapes - seen) >= fewest:
                chosen.append(tiling)
                seen |= shapes
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize(("m", "step"), [(16, 18), *soaked((192, 80))])
def test_what_is_offered_compiles_without_spills_or_warnings(m: int, step: int) -> None:
    """tests/soak/kernels.py compiles each shape."""
    workload = gated_of(m)
    for chosen in each_shape_once(workload)[::step]:
        resources = report_of(render(workload, chosen), "sm_90a").resources
        assert (resources.warnings, resources.spill_bytes) == ((), 0), chosen


def test_a_source_has_an_instruction_for_each_width_and_no_other() -> None:
    widths = re.findall(r"struct Wgmma<(\d+)>", render(GATED, CASES[7][1]))
    assert widths == ["128", "224"]
    assert "m64n224k16.f32.f16.f16" in render(GATED, CASES[7][1])
    assert "m64n176k16.f32.bf16.bf16" in render(RAGGED, CASES[10][1])


@pytest.mark.parametrize(
    "field",
    [
        *("window", "input_stages", "num_stages", "split_k", "weight_hint", "intermediate_hint"),
        *("cluster_m", "cluster_n", "cluster_k", "warpgroups", "swap_ab", "epilogue", "startup_prefetch"),
    ],
)
def test_every_axis_of_the_engine_changes_the_source(field: str) -> None:
    hints = {"weight_hint": CacheHint.NORMAL, "intermediate_hint": CacheHint.NORMAL}
    rings: dict[str, object] = {"window": 5, "input_stages": 5, "num_stages": 8, "split_k": (1, 2)}
    clusters = {"cluster_m": 2, "cluster_n": 2, "cluster_k": 2}
    values = {**rings, **hints, **clusters, "warpgroups": TURNS, "swap_ab": True, "epilogue": TMA}
    values["startup_prefetch"] = 4
    chosen = CASES[2][1]
    changed = Tiling(**{**{f: getattr(chosen, f) for f in chosen.__dataclass_fields__}, field: values[field]})
    assert render(PAIR, changed).splitlines()[6:] != render(PAIR, chosen).splitlines()[6:]


def test_a_swapped_gate_and_up_projection_take_turns_by_eight_rows() -> None:
    workload = replace(GATED, ops=(replace(GATED.tile_ops[0], n=48, k=192), replace(GATED.tile_ops[1], n=64, k=48)))
    chosen = tiling(((16, 24, 128), (16, 64, 64)), 4, 4, swapped_warps=4)
    [found] = [m for m in tensor_maps(workload, chosen) if (m.op, m.operand) == (0, "w")]
    weights = np.arange(2 * 48 * 192, dtype=np.int32).reshape(2 * 48, 192)  # 2 bytes each on a card
    strides = [2, *found.strides_bytes]
    seen = np.lib.stride_tricks.as_strided(
        weights, shape=found.dims[::-1], strides=[stride * 2 for stride in strides[::-1]]
    )
    lines, pairs, halves, rows, columns = found.box[::-1]
    stage = seen[1 : 1 + lines, 3 : 3 + pairs, :halves, :rows, :columns].reshape(lines, -1, 64)
    assert stage.shape == (2, 48, 64)  # lines, rows of gate and up projection, columns of a line
    expected = [row + half * 48 for first in (24, 32, 40) for half in (0, 1) for row in range(first, first + 8)]
    assert (stage[:, :, 0] // 192 == expected).all()
    assert (stage % 192 == np.arange(64, 192).reshape(2, 1, 64)).all()


def test_maps_have_lines_of_their_own_where_rows_are_whole_lines() -> None:
    by_name = {(m.op, m.operand): m for m in tensor_maps(PAIR, CASES[0][1])}
    assert [(m.op, m.operand) for m in tensor_maps(PAIR, CASES[0][1])] == [(0, "a"), (1, "a"), (0, "w"), (1, "w")]
    assert by_name[0, "w"].dims == (64, 14336, 64)
    assert by_name[0, "w"].strides_bytes == (8192, 128)
    assert by_name[0, "w"].box == (64, 112, 2)
    ragged = {(m.op, m.operand): m for m in tensor_maps(RAGGED, CASES[10][1])}
    assert ragged[0, "a"].dims == (520, 200)
    assert ragged[0, "a"].strides_bytes == (1040,)
    assert ragged[0, "a"].box == (64, 128)


@pytest.mark.parametrize(
    ("cluster", "depth", "inputs", "weights"),
    [
        ((1, 1), 128, (64, 64, 2), (64, 256, 2)),
        ((1, 2), 128, (64, 64, 1), (64, 128, 2)),
        ((1, 4), 128, (64, 32, 1), (64, 64, 2)),
        ((1, 4), 64, (64, 16, 1), (64, 64, 1)),
        ((2, 1), 64, (64, 32, 1), (64, 128, 1)),
        ((2, 2), 256, (64, 32, 2), (64, 128, 2)),
    ],
)
def test_a_cta_of_a_cluster_brings_a_slice_of_each_stage(
    cluster: tuple[int, int], depth: int, inputs: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    maps = tensor_maps(PAIR, tiling(((64, 256, depth), (64, 256, 64)), 2, 2, cluster=cluster))
    assert (maps[0].box, maps[2].box) == (inputs, weights)
    assert maps[0].dims == (64, 512, 64)


def test_a_source_with_clusters_says_so_to_the_launch_and_no_other_does() -> None:
    cluster = render(PAIR, tiling(((64, 256, 64), (64, 256, 64)), 2, 2, cluster=(2, 2)))
    assert "#define TUNER_CLUSTER_DIMS __cluster_dims__(4, 1, 1)\n" in cluster
    assert "#define TUNER_CLUSTER_DIMS\n" in render(PAIR, CASES[0][1])


def test_a_gated_op_s_weights_come_in_two_boxes() -> None:
    weights = tensor_maps(GATED, CASES[8][1])[2]
    assert weights.dims == (64, 2 * 14336, 64)
    assert weights.box == (64, 64, 2)
    assert "struct Wgmma<128>" in render(GATED, CASES[7][1])
    assert re.findall(r"struct Wgmma<(\d+)>", render(GATED, CASES[8][1])) == ["64", "128"]


def test_outputs_that_the_copy_engine_stores_have_maps_of_chunks() -> None:
    plain, stored = (tiling(((128, 128, 64), (128, 176, 64)), 4, 4, epilogue=one) for one in Epilogue)
    assert tensor_maps(RAGGED, stored)[:4] == tensor_maps(RAGGED, plain)
    outputs = tensor_maps(RAGGED, stored)[4:]
    assert [(m.op, m.operand, m.dims, m.strides_bytes, m.box) for m in outputs] == [
        (0, "c", (1000, 200), (2000,), (64, 16)),
        (1, "c", (264, 200), (528,), (64, 16)),
    ]
    layout, longer = parameter_layout(RAGGED, plain, 1), parameter_layout(RAGGED, stored, 1)
    assert [field["name"] for field in longer["fields"][len(layout["fields"]) :]] == ["up.c_map", "down.c_map"]
    assert longer["fields"][-2]["offset"] == layout["size_bytes"]
    assert longer["size_bytes"] == layout["size_bytes"] + 2 * MAP_BYTES


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET, Assignment.FIRST_WAVE])
def test_the_parameter_tells_static_ctas_their_first_task(assignment: Assignment) -> None:
    pair = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=assignment, reserved_sms=4)
    schedule = Schedule.of(tiling=CASES[0][1], ordering=ordering)
    (plan,) = plans_for(pair, H200, Candidate(plan_kind=PlanKind.FUSED, schedule=schedule))
    rows = list(struct.iter_unpack("<iibBB?HH", first_tasks(plan)))
    assert len(rows) == 160
    if assignment is Assignment.TICKET:
        assert {row[2] for row in rows} == {-1}
    else:
        assert [row[1] for row in rows[:128]] == list(range(128))
        assert {row[2:] for row in rows[:128]} == {(0, 0, 0, False, 0, 0)}
        assert {row[2] for row in rows[128:]} == {-1}


def test_the_parameter_is_as_long_as_its_layout_says() -> None:
    pair = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
    layout = parameter_layout(pair, CASES[0][1], 1)
    maps = tuple(bytes([i]) * MAP_BYTES for i in range(4))
    args = extend_args(bytes(104 + 2 * 64), b"\1" * 160 * 16, maps)
    assert len(args) == layout["size_bytes"]
    offsets = {field["name"]: field["offset"] for field in layout["fields"]}
    assert args[offsets["first_tasks"] :][:2560] == b"\1" * 2560
    assert args[offsets["down.a_map"] :][:128] == maps[1]
    assert args[offsets["up.w_map"] :][:128] == maps[2]
    assert offsets["up.a_map"] % 64 == 0
