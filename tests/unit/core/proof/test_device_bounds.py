"""What the device indexes with a plan's words, and the resulting limits of these words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import H200, ordering, small_gpu, tiling, wgmma
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.resources import Resources
from tuner.core.proof.verify import VerifiedPlan, verify, verify_paired_launches
from tuner.core.schedule.ordering import Assignment
from tuner.errors import PlanError, ResourceError
from tuner.ops.gemm.pairs import ffn_pair, independent_pair

PAIR = tile_graph(ffn_pair(m=32, d_in=32, d_hidden=64, d_out=64), tiling((16, 32), (16, 32), num_stages=3))
RINGED = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=128, d_out=128), wgmma((16, 64, 64), num_stages=3))
#: A thousand tiles of each op, without dependencies, so no task waits.
APART = tile_graph(independent_pair((16, 65536, 64), (16, 65536, 64)), wgmma((16, 64, 64)))
SPLIT = tile_graph(
    ffn_pair(m=16, d_in=32, d_hidden=128, d_out=64), tiling((16, 32), (16, 32), split=(1, 2), num_stages=3)
)


def resources_of(graph: TileGraph) -> Resources:
    """The resources of a CTA that fits an H200."""
    tiling = graph.tiling
    return Resources(
        num_threads=tiling.num_threads,
        smem_bytes=16384,
        registers_per_thread=64,
        cluster_size=tiling.cluster_size,
    )


def verdict(plan: Plan, graph: TileGraph) -> VerifiedPlan:
    return verify(plan, graph, resources_of(graph), H200)


def refused(plan: Plan, graph: TileGraph, *parts: str) -> None:
    with pytest.raises(PlanError) as caught:
        verdict(plan, graph)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(("graph", "most"), [(PAIR, 2), (RINGED, 3)])
@pytest.mark.parametrize("assignment", [Assignment.TICKET, Assignment.STATIC])
def test_no_more_stages_can_be_held_back_than_the_ring_fills_ahead(
    graph: TileGraph, most: int, assignment: Assignment
) -> None:
    """A wgmma CTA begins with step (stages - held): below 0, it would multiply unloaded weights."""
    plan = make_plan(graph, ordering(assignment=assignment), small_gpu(2))
    for held in range(most + 1):
        assert verdict(replace(plan, held_stages=held), graph).plan.held_stages == held
    for held in (most + 1, 1000, 2**20):
        refused(replace(plan, held_stages=held), graph, f"held_stages is {held}; it must be 0 to {most}", "stages")


def test_both_launches_of_two_streams_hold_back_no_more_than_the_ring() -> None:
    parts = make_paired_plans(PAIR, ordering(assignment=Assignment.STATIC), small_gpu(2))
    for wrong in (0, 1):
        plans = [replace(part, held_stages=5 if index == wrong else 0) for index, part in enumerate(parts)]
        with pytest.raises(ResourceError, match="held_stages is 5; it must be 0 to 2"):
            verify_paired_launches(plans[0], plans[1], PAIR, resources_of(PAIR), H200)


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.SHARES, Assignment.FIRST_WAVE, Assignment.TICKET])
def test_a_grid_of_the_wgmma_engine_has_no_more_ctas_than_its_parameter_has_first_tasks(
    assignment: Assignment,
) -> None:
    """`first_tasks[kMaxCtas]` is indexed by the CTA's number, whether or not there are signals."""
    fits = make_plan(APART, ordering(assignment=assignment), small_gpu(160))
    assert (fits.num_ctas, fits.num_signals) == (160, 0)
    verdict(fits, APART)
    for num_sms in (161, 2048):
        plan = make_plan(APART, ordering(assignment=assignment), small_gpu(num_sms))
        refused(plan, APART, f"num_ctas is {num_sms}; it must be at most 160", "first task")


def test_4096_static_queues_are_too_many_for_the_wgmma_engine_though_nothing_is_signalled() -> None:
    plan = make_plan(APART, ordering(assignment=Assignment.STATIC), small_gpu(160))
    queues = np.pad(plan.queues, (0, 4096 - 160), mode="edge")
    refused(replace(plan, num_ctas=4096, queues=queues), APART, "num_ctas is 4096; it must be at most 160")


@pytest.mark.parametrize(("word", "value"), [("num_ctas", 2**31 - 1), ("num_split_tiles", 2**31 - 1)])
def test_ticket_ctas_and_slots_that_overflow_where_the_device_counts_are_refused(word: str, value: int) -> None:
    plan = make_plan(SPLIT, ordering(), small_gpu(2))
    refused(replace(plan, **{word: value}), SPLIT, f"{word} is {value}")  # type: ignore[arg-type]


def test_signals_that_no_tile_could_post_to_are_refused() -> None:
    """A signal takes memory on the GPU and in the proof."""
    plan = make_plan(PAIR, ordering(), small_gpu(2))
    verdict(replace(plan, num_signals=8), PAIR)
    for num_signals in (9, 2**24):
        refused(replace(plan, num_signals=num_signals), PAIR, f"num_signals is {num_signals}; it must be at most 8")


def test_slots_beyond_what_a_workspace_holds_are_refused() -> None:
    """Two parts of a tile of 16 x 32 sums take 4 KiB, so 2^24 slots would take 64 GiB."""
    plan = make_plan(SPLIT, ordering(), small_gpu(2))
    verdict(replace(plan, num_split_tiles=100), SPLIT)
    refused(replace(plan, num_split_tiles=2**24), SPLIT, "num_split_tiles is 16777216", "65536 MiB", "512")


def test_a_cluster_of_more_ctas_than_any_gpu_has_is_refused() -> None:
    graph = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=2048, d_out=2048), wgmma((16, 2048, 64), cluster_n=32))
    refused(make_plan(graph, ordering(), H200), graph, "a cluster of 32 CTAs", "at most 16")


def test_resources_of_another_kernel_are_refused() -> None:
    """Residency is computed from the clusters of the launched kernel."""
    graph = tile_graph(ffn_pair(m=16, d_in=64, d_hidden=128, d_out=128), wgmma((16, 128, 64), cluster_n=2))
    plan = make_plan(graph, ordering(), H200)
    verdict(plan, graph)
    with pytest.raises(ResourceError, match="clusters of 1, but the tiling's kernel has clusters of 2"):
        verify(plan, graph, replace(resources_of(graph), cluster_size=1), H200)
