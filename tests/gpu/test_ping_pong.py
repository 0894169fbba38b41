"""Math warpgroups that take turns, on a card: every tile shape, edge, option and way of launching, against float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.gpu.test_trace import TOLERANCE_NS, last_producer_ns, supervisor, traced
from tests.gpu.test_wgmma import hopper
from tests.gpu.test_wgmma import schedule as cooperative
from tests.support.on_card import RAGGED, chain_of_three, check_abort, check_relaunches, fused, problem, run, run_kind
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, ffn_pair, independent_pair
from tuner.core.schedule.ordering import Assignment, Granularity, RasterKind, Schedule, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Warpgroups
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.host.supervisor import GpuSupervisor

pytest.importorskip("cupy")

from tuner.workers.gpu.session import Session

__all__ = ["hopper", "supervisor"]

TICKET = Assignment.TICKET


def schedule(tiles: tuple[tuple[int, int, int], ...], **fields: Any) -> Schedule:
    """On few SMs, so that each CTA has several tasks, for both of its teams."""
    shared = cooperative(tiles, **{"reserved_sms": 120, **fields})
    return replace(shared, tiling=replace(shared.tiling, num_warps=8, warpgroups=Warpgroups.PING_PONG))


#: Many tasks of whole tiles.
MANY = ffn_pair(m=1024, d_in=512, d_hidden=2048, d_out=1024, activation=Activation.RELU, dtype=Dtype.BF16)
CASES = {
    "16 rows": schedule(((16, 64, 64), (16, 32, 128))),
    "16 rows, split, tickets": schedule(((16, 80, 64), (16, 64, 64)), split_k=(3, 4), assignment=TICKET),
    "32 rows, deep stages": schedule(((32, 48, 256), (32, 16, 256)), stages=3, input_stages=2),
    "64 rows": schedule(((64, 256, 64), (64, 256, 64))),
    "64 rows, window, tickets": schedule(((64, 112, 64), (64, 48, 64)), stages=5, window=2, assignment=TICKET),
    "64 rows, split": schedule(((64, 112, 64), (64, 64, 64)), split_k=(2, 3)),
    "64 rows, part-major": schedule(((64, 64, 64), (64, 64, 64)), split_k=(2, 3), part_major=True),
    "128 rows": schedule(((128, 128, 64), (128, 128, 64))),
    "128 rows, columns, tickets": schedule(((128, 80, 64), (128, 64, 64)), raster=RasterKind.COLUMN, assignment=TICKET),
    "128 rows, split, tickets": schedule(((128, 128, 64), (128, 112, 64)), split_k=(1, 4), assignment=TICKET),
    "two stages": schedule(((64, 96, 64), (64, 64, 64)), stages=2, input_stages=2),
    "unequal rows": schedule(((128, 96, 64), (64, 64, 64))),
    "256 rows": schedule(((256, 64, 64), (256, 56, 64)), input_stages=2),
    "waits by slice": schedule(
        ((64, 64, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=WaitPosition.SLICE, assignment=TICKET
    ),
    "waits by slice, no run-ahead": schedule(
        ((64, 48, 64), (128, 64, 64)),
        granularity=Granularity.CHUNK,
        sync_width=4,
        wait_position=WaitPosition.SLICE,
        run_ahead=0,
        split_k=(1, 2),
    ),
    "run-ahead 25, tickets": schedule(((64, 96, 64), (64, 64, 64)), run_ahead=25, assignment=TICKET),
    "stealing by the readers": schedule(((64, 64, 64), (64, 64, 64)), partition=1),
    "stealing by both": schedule(((64, 64, 64), (64, 64, 64)), partition=4, granularity=Granularity.TILE),
    "split, stealing by the producers": schedule(((64, 64, 64), (64, 64, 64)), split_k=(2, 3), partition=7),
    "cluster 1x2, split": schedule(((64, 192, 64), (64, 96, 64)), split_k=(2, 3), cluster=(1, 2)),
    "cluster 2x1, tickets": schedule(((256, 112, 64), (256, 64, 64)), assignment=TICKET, cluster=(2, 1)),
    "cluster 2x2, stealing": schedule(((128, 128, 64), (128, 64, 64)), partition=4, cluster=(2, 2), reserved_sms=100),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", [RAGGED, MANY], ids=["ragged", "many"])
def test_every_tile_shape_is_right(session: Session, builder: Builder, gpu: Gpu, case: str, pair: Any) -> None:
    run(session, builder, gpu, problem(pair), fused(CASES[case]))


@pytest.mark.parametrize("m", [1, 16, 37, 64, 129, 200, 300])
@pytest.mark.parametrize("dtype", list(Dtype))
def test_every_number_of_rows_is_right(session: Session, builder: Builder, gpu: Gpu, m: int, dtype: Dtype) -> None:
    pair = ffn_pair(m=m, d_in=264, d_hidden=1024, d_out=520, activation=Activation.GELU, bias=True, dtype=dtype)
    for name in ("16 rows", "64 rows, split", "128 rows", "two stages"):
        run(session, builder, gpu, problem(pair), fused(CASES[name]))


@pytest.mark.parametrize(
    "options",
    [{"gated": True}, {"gated": True, "bias": True, "residual": True, "row_scale": True}, {"residual": True}],
    ids=lambda options: "+".join(options),
)
def test_every_option_is_right(session: Session, builder: Builder, gpu: Gpu, options: dict[str, bool]) -> None:
    pair = ffn_pair(m=150, d_in=136, d_hidden=1032, d_out=520, activation=Activation.SILU, **options)
    for tiles, split in (
        (((16, 64, 64), (16, 64, 64)), ()),
        (((64, 48, 128), (64, 48, 64)), (2, 2)),
        (((64, 128, 64), (128, 128, 64)), ()),
    ):
        run(session, builder, gpu, problem(pair), fused(schedule(tiles, split_k=split)))


@pytest.mark.parametrize("kind", [kind for kind in PlanKind if kind.is_ours])
def test_every_plan_kind_is_right(session: Session, builder: Builder, gpu: Gpu, kind: PlanKind) -> None:
    names = ["64 rows", "64 rows, split", "128 rows"]
    names += ["64 rows, window, tickets", "128 rows, split, tickets", "stealing by both"]
    run_kind(session, builder, gpu, MANY, kind, (CASES[name] for name in names))


def test_three_ops_and_an_independent_pair_are_right(session: Session, builder: Builder, gpu: Gpu) -> None:
    chain = chain_of_three(300, (128, 1032, 2048, 512))
    for assigned in (Assignment.STATIC, TICKET):
        chosen = schedule(((64, 64, 64), (64, 128, 64), (64, 32, 128)), assignment=assigned)
        run(session, builder, gpu, problem(chain), fused(chosen))
    both = independent_pair((256, 2048, 512), (640, 1024, 512))
    run(session, builder, gpu, problem(both), fused(schedule(((64, 64, 128), (64, 32, 128)))))


@pytest.mark.parametrize("wait", [0, -1])
@pytest.mark.parametrize(
    "assigned", [{"assignment": Assignment.STATIC}, {"assignment": TICKET}, {"partition": 5}], ids=str
)
def test_an_aborted_launch_leaves_nan_or_what_is_right(
    session: Session, builder: Builder, gpu: Gpu, assigned: dict[str, Any], wait: int
) -> None:
    """The first wait asks for a post too many; or the last one, which stands before a task's last k-steps."""
    position = WaitPosition.SLICE if wait else WaitPosition.TASK
    chosen = schedule(((64, 96, 64), (64, 64, 64)), granularity=Granularity.TILE, wait_position=position, **assigned)
    check_abort(session, builder, gpu, problem(MANY), chosen, wait=wait)


@pytest.mark.parametrize("name", ["64 rows, split", "128 rows, split, tickets", "split, stealing by the producers"])
def test_relaunches_give_the_same_bits(session: Session, builder: Builder, gpu: Gpu, name: str) -> None:
    check_relaunches(session, builder, gpu, problem(RAGGED), fused(CASES[name]))


@pytest.mark.parametrize("assigned", [Assignment.STATIC, TICKET])
def test_a_tile_is_stored_while_the_next_one_is_multiplied(supervisor: GpuSupervisor, assigned: Assignment) -> None:
    pair = ffn_pair(m=1024, d_in=4096, d_hidden=8192, d_out=4096, activation=Activation.SILU)
    chosen = schedule(((128, 128, 64), (128, 128, 64)), stages=6, input_stages=6, assignment=assigned, reserved_sms=0)
    trace, (plan,) = traced(supervisor, problem(pair), fused(chosen))
    overlaps = []
    for cta in range(plan.plan.num_ctas):
        own = sorted((s for s in trace.spans if s.cta == cta), key=lambda s: s.taken_ns)
        assert [s.task for s in own] == sorted(s.task for s in own)
        assert all(before.computed_ns < after.computed_ns for before, after in pairwise(own))
        assert all(first.stored_ns < later.loaded_ns for first, later in zip(own, own[2:], strict=False))
        overlaps += [after.loaded_ns < before.stored_ns for before, after in pairwise(own)]
    assert sum(overlaps) > len(overlaps) / 2
    stored = {(s.op, s.tile_m, s.tile_n): s.stored_ns for s in trace.spans}
    early = [last_producer_ns(plan.graph, s, stored) - s.ready_ns for s in trace.spans if s.op == 1]
    assert max(early) < TOLERANCE_NS
