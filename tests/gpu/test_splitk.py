"""Tiles in parts on a card: right numbers, the same bits in every launch, and one post for each tile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import cupy
import pytest

from tests.support.on_card import fused, problem, run, schedule
from tuner.core.legal.legality import kind_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload, ffn_pair, independent_pair
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Schedule,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.source.launch_args import workspace_layout

pytest.importorskip("cupy")

from tuner.workers.gpu.baselines import ChainRunner
from tuner.workers.gpu.launch import Kernel, PlanOnDevice
from tuner.workers.gpu.session import Session

#: k-steps of 64: 8 and 17, the last one ragged in both.
RAGGED = ffn_pair(m=37, d_in=500, d_hidden=1084, d_out=200, activation=Activation.SILU, bias=True)
TILES = ((16, 64, 64), (16, 64, 64))


def chosen(split: tuple[int, ...], assignment: Assignment = Assignment.TICKET, **changes: object) -> Schedule:
    return schedule(TILES, split=split, assignment=assignment, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
@pytest.mark.parametrize("split", [(1, 2), (3, 1), (2, 3), (4, 8), (8, 16)], ids=str)
def test_tiles_in_parts_are_right(
    session: Session, builder: Builder, gpu: Gpu, split: tuple[int, ...], assignment: Assignment, dtype: Dtype
) -> None:
    measured = run(session, builder, gpu, problem(replace(RAGGED, dtype=dtype)), fused(chosen(split, assignment)))
    assert 0 < measured.rel_error < (2e-3 if dtype is Dtype.FP16 else 1.6e-2)


@pytest.mark.parametrize("activation", list(Activation))
def test_every_epilogue_follows_the_sum(session: Session, builder: Builder, gpu: Gpu, activation: Activation) -> None:
    plain = ffn_pair(m=50, d_in=272, d_hidden=528, d_out=72, activation=activation, bias=True)
    up, down = plain.ops
    gated = replace(plain, ops=(replace(up, gated=True, row_scale=True), replace(down, residual=True)))
    tiles = ((32, 64, 32), (32, 32, 32))
    for workload in (plain, gated):
        run(session, builder, gpu, problem(workload), fused(schedule(tiles, stages=4, split=(2, 3))))


def test_a_part_that_waits_for_its_own_columns_alone_is_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    """Finer signals let parts begin before the rest of their row is there."""
    asked = problem(ffn_pair(m=48, d_in=512, d_hidden=2048, d_out=512))
    for granularity, width in (
        (Granularity.TILE, 1),
        (Granularity.CHUNK, 2),
        (Granularity.CHUNK, 8),
        (Granularity.STRIDED, 2),
        (Granularity.BARRIER, 1),
    ):
        for assignment in (Assignment.STATIC, Assignment.TICKET):
            one = chosen((1, 4), assignment, granularity=granularity, sync_width=width)
            run(session, builder, gpu, asked, fused(one))


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
@pytest.mark.parametrize("position", list(WaitPosition))
@pytest.mark.parametrize("split", [(1, 2), (3, 4), (4, 16)], ids=str)
def test_parts_that_take_every_so_many_th_step_are_right(
    session: Session, builder: Builder, gpu: Gpu, split: tuple[int, ...], position: WaitPosition, assignment: Assignment
) -> None:
    """Of 8 and 17 k-steps: parts of equal and of unequal numbers of them, with the ragged last one in any of them."""
    for granularity, width in ((Granularity.TILE, 1), (Granularity.CHUNK, 4), (Granularity.STRIDED, 3)):
        order = {"granularity": granularity, "sync_width": width, "wait_position": position}
        one = chosen(split, assignment, split_order=SplitOrder.STRIDED, **order)
        run(session, builder, gpu, problem(RAGGED), fused(one))


def test_rows_that_are_copied_element_by_element_may_be_split_in_strides(
    session: Session, builder: Builder, gpu: Gpu
) -> None:
    asked = problem(ffn_pair(m=33, d_in=131, d_hidden=263, d_out=67, activation=Activation.GELU, bias=True))
    one = schedule(((16, 64, 32), (16, 32, 32)), split=(2, 3), split_order=SplitOrder.STRIDED)
    run(session, builder, gpu, asked, fused(one))


def test_wide_tiles_and_unequal_heights_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    asked = problem(ffn_pair(m=300, d_in=512, d_hidden=1152, d_out=640))
    for up, down in ((128, 64), (64, 128)):
        one = schedule(((up, 128, 64), (down, 256, 64)), warps=8, split=(2, 4))
        run(session, builder, gpu, asked, fused(one))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_runs_tiles_in_parts(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    for order in SplitOrder:
        candidate = Candidate(plan_kind=kind, schedule=chosen((2, 4), Assignment.STATIC, split_order=order))
        run(session, builder, gpu, problem(RAGGED), candidate)


#: 4 x 16 and 4 x 5 tiles of 64 x 64: 9 CTAs leave 3 of all, 1 and 2 of each op, and 3 and 6 CTAs 1 and 2. 11 CTAs leave
#: 7 and twice 9, of which they do not get even parts.
EVEN = ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU, bias=True)
#: 32 and 9 tiles of 32 columns.
THREE_ROWS = ffn_pair(m=3, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU)
SQUARE, TALL, LOW = (Tile(m=m, n=n, k=k) for m, n, k in ((64, 64, 64), (128, 64, 64), (4, 32, 256)))
WGMMA = Tiling(engine=Engine.WGMMA, tiles=(SQUARE, SQUARE), num_stages=4, input_stages=3, num_warps=4, split_k=(2, 3))
TAILS = (SplitTiles.TAIL, SplitTiles.STREAM)
#: A tiling of each engine, and how many SMs its CTAs take.
TAILED: dict[str, tuple[Workload, Tiling, int]] = {
    "mma": (EVEN, Tiling(tiles=(SQUARE, SQUARE), num_stages=3, num_warps=4, split_k=(2, 3)), 9),
    "wgmma": (EVEN, WGMMA, 9),
    "wgmma, clusters": (EVEN, replace(WGMMA, tiles=(TALL, TALL), cluster_m=2), 18),
    "simt": (THREE_ROWS, Tiling(engine=Engine.SIMT, tiles=(LOW, LOW), num_stages=3, num_warps=8, split_k=(2, 2)), 9),
}
ASSIGNMENTS = (
    *(((Assignment.STATIC, partition), split_tiles) for partition in (0, 3) for split_tiles in TAILS),
    ((Assignment.TICKET, 0), SplitTiles.TAIL),
    ((Assignment.STEALING, 3), SplitTiles.TAIL),
)


def tailed(
    case: str,
    gpu: Gpu,
    assignment: Assignment = Assignment.STATIC,
    partition: int = 0,
    split_tiles: SplitTiles = SplitTiles.TAIL,
) -> Schedule:
    """Few CTAs, so that a few tiles are left for the last wave, and these alone are split."""
    _, tiling, num_sms = TAILED[case]
    num_sms += 2 * tiling.cluster_size * (split_tiles is SplitTiles.STREAM)
    if tiling.engine is Engine.WGMMA and gpu.compute_capability != (9, 0):
        pytest.skip(f"{gpu.name} has no wgmma")
    plain = schedule(TILES, assignment=assignment, partition=partition).ordering
    ordering = replace(plain, split_tiles=split_tiles, reserved_sms=gpu.num_sms - num_sms)
    return Schedule(tiling=tiling, ordering=ordering)


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
@pytest.mark.parametrize(("assigned", "split_tiles"), ASSIGNMENTS, ids=str)
@pytest.mark.parametrize("case", TAILED)
def test_a_split_tail_is_right(
    session: Session,
    builder: Builder,
    gpu: Gpu,
    case: str,
    assigned: tuple[Assignment, int],
    split_tiles: SplitTiles,
    kind: PlanKind,
) -> None:
    workload, one = TAILED[case][0], tailed(case, gpu, *assigned, split_tiles)
    if kind is PlanKind.TWO_STREAMS and not assigned[0].is_static:
        pytest.skip("two streams need queues")
    if reason := kind_problem(workload, gpu, kind):
        pytest.skip(reason)
    run(session, builder, gpu, problem(workload), Candidate(plan_kind=kind, schedule=one))


@pytest.mark.parametrize(
    ("assignment", "split_tiles"), [(Assignment.TICKET, SplitTiles.TAIL), (Assignment.STATIC, SplitTiles.STREAM)]
)
@pytest.mark.parametrize("case", TAILED)
def test_a_split_tail_gives_the_same_bits_in_every_launch_and_only_its_parts_arrive(
    session: Session, builder: Builder, gpu: Gpu, case: str, assignment: Assignment, split_tiles: SplitTiles
) -> None:
    workload = TAILED[case][0]
    ready = session._prepare(problem(workload))
    one = tailed(case, gpu, assignment, split_tiles=split_tiles)
    kernel, plan = launched(builder, gpu, one, workload)
    runner, first, num_launches = ChainRunner(kernel, (plan,)), None, 100
    for _ in range(num_launches):
        assert ready.run_once(runner, ready.data.check_ops(0)) is None
        bits = {op: output.bits.copy() for op, output in ready.data.outputs[0].items()}
        first = first or bits
        assert all(bool((first[op] == bits[op]).all()) for op in bits)
    words, size = plan.plan.plan, plan.plan.graph.tiling.cluster_size
    parts = sorted((task[8], task[7]) for task in words.tasks.tolist() if task[7] and not task[6])
    assert 0 < len(parts) == words.num_split_tiles < words.num_ctas
    begin = workspace_layout(plan.plan)["arrivals"] // 4
    arrivals = cupy.asnumpy(plan._workspace.words[begin : begin + len(parts) * size]).tolist()
    assert arrivals == [num_launches * num_parts for _, num_parts in parts for _ in range(size)]


@pytest.mark.parametrize("interleave", [InterleaveKind.PRODUCER_FIRST, InterleaveKind.PROPORTIONAL])
@pytest.mark.parametrize("case", ["mma", "wgmma", "simt"])
def test_independent_ops_that_share_the_sms_evenly_are_right(
    session: Session, builder: Builder, gpu: Gpu, case: str, interleave: InterleaveKind
) -> None:
    """Fewer tiles than CTAs, of unequal depth: each is cut wherever a CTA's share ends."""
    workload, tiling, _ = TAILED[case]
    one, other = workload.ops
    pair = independent_pair((one.m, one.n, one.k), (min(136, one.m), other.n, 2 * other.k))
    chosen = tailed(case, gpu, split_tiles=SplitTiles.STREAM)
    ordering = replace(chosen.ordering, reserved_sms=0, interleave=Interleave(kind=interleave))
    tiling = replace(tiling, split_k=(3, 4) if case != "simt" else (3, 8))
    run(session, builder, gpu, problem(pair), fused(Schedule(tiling=tiling, ordering=ordering)))


def launched(builder: Builder, gpu: Gpu, one: Schedule, workload: Workload = RAGGED) -> tuple[Kernel, PlanOnDevice]:
    good = prepare(workload, gpu, fused(one), builder, {})
    kernel = Kernel(good.work.cubin, num_threads=good.work.num_threads, smem_bytes=good.work.smem_bytes)
    return kernel, PlanOnDevice(good.plans[0])


def test_every_launch_gives_the_same_bits(session: Session, builder: Builder, gpu: Gpu) -> None:
    """Whoever arrives last: so many launches that the order of arrivals is sure to differ."""
    ready = session._prepare(problem(RAGGED))
    for assignment, order in product((Assignment.STATIC, Assignment.TICKET), SplitOrder):
        kernel, plan = launched(builder, gpu, chosen((4, 8), assignment, split_order=order))
        runner, first = ChainRunner(kernel, (plan,)), None
        for _ in range(200):
            assert ready.run_once(runner, ready.data.check_ops(0)) is None
            bits = {op: output.bits.copy() for op, output in ready.data.outputs[0].items()}
            first = first or bits
            assert all(bool((first[op] == bits[op]).all()) for op in bits)


def test_a_tile_posts_once_and_each_of_its_parts_arrives_once_a_launch(
    session: Session, builder: Builder, gpu: Gpu
) -> None:
    ready = session._prepare(problem(RAGGED))
    kernel, plan = launched(builder, gpu, chosen((4, 8)))
    runner, num_launches = ChainRunner(kernel, (plan,)), 3
    for _ in range(num_launches):
        assert ready.run_once(runner, ready.data.check_ops(0)) is None
    words = plan.plan.plan
    assert plan.signals().tolist() == [num_launches * 17] * words.num_signals  # up has 17 tiles in a row
    layout = workspace_layout(plan.plan)
    first = layout["arrivals"] // 4
    arrivals = cupy.asnumpy(plan._workspace.words[first : first + 3 * 17 + 3 * 4]).tolist()
    assert arrivals == [num_launches * 4] * (3 * 17) + [num_launches * 8] * (3 * 4)
