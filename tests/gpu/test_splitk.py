"""Tiles in parts on a card: right numbers, the same bits in every launch, and one post for each tile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import cupy
import pytest

from tests.gpu.helpers import fused, problem, run, schedule
from tuner.core.gpu import Gpu
from tuner.core.outcome import Candidate, PlanKind
from tuner.core.schedule import Assignment, Granularity, Schedule, SplitOrder, WaitPosition
from tuner.core.workload import Activation, Dtype, ffn_pair
from workers.build import Builder
from workers.candidates import prepare
from workers.parameter import workspace_layout

pytest.importorskip("cupy")

from workers.gpu.baselines import ChainRunner
from workers.gpu.launch import Kernel, PlanOnDevice
from workers.gpu.session import Session

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


def launched(builder: Builder, gpu: Gpu, one: Schedule) -> tuple[Kernel, PlanOnDevice]:
    good = prepare(RAGGED, gpu, fused(one), builder, {})
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
