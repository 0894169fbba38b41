from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings

from tests.support.cases import SMALL, ordered_graphs, ordering, tiling
from tests.support.lanes import soak_unless
from tests.support.spaces import space_of
from tuner.core.model.bounds import reference_us
from tuner.core.model.simulate import Timeline, simulate
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.header import STATIC
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.resources import Resources
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, RasterKind, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Tile
from tuner.ops.gemm.pairs import ffn_pair

H200 = CATALOGUE["h200"]


def timeline_of(graph: TileGraph, order: Ordering, gpu: Gpu = H200, resources: Resources = SMALL) -> Timeline:
    return simulate(verify(make_plan(graph, order, gpu), graph, resources, gpu))


@pytest.mark.slow
@settings(max_examples=25)
@given(ordered_graphs())
def test_a_timeline_keeps_every_queue_and_every_edge(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, gpu = case
    plan = make_plan(graph, order, gpu)
    timeline = simulate(verify(plan, graph, SMALL, gpu))
    graph = graph.with_parts(strided=plan.strided_parts)  # the plan decides which k-steps each split-K part covers
    end_us: dict[tuple[int, ...], float] = {}
    num_spans = 0
    for lane in timeline.spans:
        for before, after in pairwise(lane):
            assert before.end_us <= after.begin_us
        for span in lane:
            assert 0 < span.begin_us <= span.wait_us < span.end_us <= timeline.makespan_us
            tile = tuple(plan.tasks[span.task, :3].tolist())
            end_us[tile] = max(span.end_us, end_us.get(tile, 0.0))
            num_spans += 1
    assert num_spans == plan.num_tasks
    assert len(end_us) == sum(rows * cols for rows, cols in graph.grids.values())
    if plan.assignment == STATIC:
        for cta, lane in enumerate(timeline.spans):
            assert [span.task for span in lane] == list(range(plan.queues[cta], plan.queues[cta + 1]))
    for lane in timeline.spans:
        for span in lane:
            op = int(plan.tasks[span.task, 0])
            for edge in (edge for edge in graph.streams if edge.consumer == op):
                task = plan.tasks[[span.task]]
                read = edge.needs(edge.reader.places(task), graph.steps_of(task)).tiles
                by_slice = order.wait_position is WaitPosition.SLICE  # then the last k-steps read the last of it
                read_us = span.computed_us if by_slice else span.wait_us
                assert all(end_us[edge.producer, *divmod(tile, edge.writer.word_grid[1])] <= read_us for tile in read)


@pytest.mark.slow
@settings(max_examples=25)
@given(ordered_graphs())
def test_no_order_beats_the_roofline(case: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, order, gpu = case
    kinds = [(op,) for op in range(len(graph.workload.tile_ops))], [tuple(range(len(graph.workload.tile_ops)))]
    for launches in kinds:
        timelines = [timeline_of(tile_graph(graph.workload, graph.tiling, ops), order, gpu) for ops in launches]
        assert sum(timeline.makespan_us for timeline in timelines) > reference_us(graph.workload, gpu)
        assert sum(timeline.dram_bytes for timeline in timelines) >= graph.workload.compulsory_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "m"),
    soak_unless(
        lambda place, _: place == 0,
        product(
            [H200, CATALOGUE["rtx3050"], replace(H200, id="slow-tensor-cores", tensor_flops_per_s=5e12)],
            [1, 16, 512, 2048],
        ),
    ),
    ids=lambda one: one.id if isinstance(one, Gpu) else None,
)
def test_no_schedule_of_a_real_space_beats_the_roofline(m: int, gpu: Gpu) -> None:
    workload = ffn_pair(m=m, d_in=1024, d_hidden=2048, d_out=1024)
    for schedule in space_of(workload, gpu).sample(random.Random(m), 15):
        for kind in (PlanKind.FUSED, PlanKind.TWO_LAUNCHES):
            plans = plans_for(workload, gpu, Candidate(plan_kind=kind, schedule=schedule))
            assert sum(simulate(plan).makespan_us for plan in plans) > reference_us(workload, gpu)


BIG = tile_graph(ffn_pair(m=1024, d_in=4096, d_hidden=14336, d_out=4096), tiling((128, 128), (128, 128), k=64))


def test_order_alone_changes_the_time() -> None:
    widths = ((RasterKind.COLUMN, 1), (RasterKind.GROUPED, 4), (RasterKind.PANEL, 8))
    rasters = (Raster(), *(Raster(kind=kind, width=width) for kind, width in widths))
    orders = [ordering(rasters=(raster, raster)) for raster in rasters] + [ordering(bands=rows) for rows in (1, 2, 4)]
    times = {timeline_of(BIG, order).makespan_us for order in orders}
    assert len(times) >= len(orders) - 1
    assert max(times) > 1.2 * min(times)


def test_the_same_plan_has_the_same_timeline() -> None:
    assert timeline_of(BIG, ordering(bands=2)) == timeline_of(BIG, ordering(bands=2))


def test_a_walk_that_returns_to_its_panels_reads_less_from_dram() -> None:
    along, grouped = (
        timeline_of(BIG, ordering(rasters=(raster, raster)))
        for raster in (Raster(), Raster(kind=RasterKind.GROUPED, width=4))
    )
    assert grouped.dram_bytes < along.dram_bytes
    assert grouped.l2_hit_bytes > along.l2_hit_bytes


def test_more_stages_hide_more_latency() -> None:
    workload = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096)
    times = [
        timeline_of(tile_graph(workload, tiling((16, 128), (16, 128), num_stages=stages)), ordering()).makespan_us
        for stages in (2, 4, 8)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


def test_tickets_run_on_the_ctas_that_fit_at_once() -> None:
    fat = Resources(num_threads=128, smem_bytes=150_000, registers_per_thread=64)
    timeline = timeline_of(BIG, ordering(ctas_per_sm=2, assignment=Assignment.TICKET), resources=fat)
    assert timeline.num_ctas == H200.num_sms
    assert len(timeline.spans) == H200.num_sms


def test_what_the_last_launch_wrote_is_read_from_the_l2() -> None:
    workload = ffn_pair(m=256, d_in=256, d_hidden=4096, d_out=256)
    graph = tile_graph(workload, tiling((64, 64), (64, 64)), (1,))
    intermediate_bytes = 2 * 256 * 4096
    warm = timeline_of(graph, ordering()).dram_bytes
    cold = timeline_of(graph, ordering(), replace(H200, l2_bytes=intermediate_bytes)).dram_bytes
    assert warm == 2 * (256 * 4096 + 256 * 256)
    assert cold >= warm + intermediate_bytes


def test_waiting_is_the_time_between_taking_a_task_and_starting_it() -> None:
    timeline = timeline_of(BIG, ordering(assignment=Assignment.STATIC))
    waited = sum(span.wait_us - span.begin_us for lane in timeline.spans for span in lane)
    assert timeline.waited_us == pytest.approx(waited)
    assert waited > 0


def test_tile_shapes_change_the_time() -> None:
    workload = ffn_pair(m=512, d_in=4096, d_hidden=4096, d_out=4096)
    tilings = [
        tiling((128, 128), (128, 128), num_stages=4, k=64, num_warps=8),
        tiling((16, 32), (16, 32), num_stages=4, k=64),
        replace(tiling((64, 64), (64, 64), num_stages=4), tiles=(Tile(m=64, n=64, k=32), Tile(m=64, n=128, k=32))),
    ]
    assert len({timeline_of(tile_graph(workload, shape), ordering()).makespan_us for shape in tilings}) == 3
