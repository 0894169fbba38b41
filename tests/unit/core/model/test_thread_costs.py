"""Costs of kernels with few bits, and tasks that a CTA draws before it begins them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.cases import H200, ordering, wgmma
from tuner.core.legal.legality import estimated_resources
from tuner.core.model.rates import rates_of
from tuner.core.model.simulate import simulate
from tuner.core.model.task_costs import PART_POST_SHARE, costs_of
from tuner.core.model.thread_costs import CONVERTED_STAGE_CLOCKS, converting_us, finishing_us, promoting_us
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.tiling import Tiling, Warpgroups
from tuner.ops.gemm.pairs import ffn_pair
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme

#: 112 and 128 tiles: 20 of 132 CTAs have none of the first op.
DEEP = wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, num_stages=11, input_stages=6)


def pair(scheme: Scheme) -> Workload:
    return QuantisedFfn(m=16, d_in=8192, d_hidden=3584, d_out=8192, scheme=scheme).to_workload()


def most_of_second(tiling: Tiling, assignment: Assignment) -> tuple[int, float]:
    """The maximum of the second op's tasks on one CTA, and the makespan."""
    workload = pair(Scheme.W8A16)
    graph = tile_graph(workload, tiling)
    plan = make_plan(graph, ordering(assignment=assignment), H200)
    timeline = simulate(verify(plan, graph, estimated_resources(workload, tiling), H200))
    second = Counter(row[0] for row in timeline.rows if plan.tasks[row[1], 0] == 1)
    return max(second.values()), timeline.makespan_us


def test_a_cta_that_waits_with_a_deep_ring_draws_further_tasks() -> None:
    """Measured on an H200: 35.05 us in queues, 42.14 with tickets."""
    (in_queues, queued_us), (drawn, drawn_us) = (
        most_of_second(DEEP, one) for one in (Assignment.STATIC, Assignment.TICKET)
    )
    assert (in_queues, drawn) == (1, 2)
    assert drawn_us > 1.1 * queued_us


def test_with_a_shallow_ring_it_draws_when_the_task_begins() -> None:
    shallow = replace(DEEP, num_stages=4)
    (most, queued_us), (drawn, drawn_us) = (
        most_of_second(shallow, one) for one in (Assignment.STATIC, Assignment.TICKET)
    )
    assert (most, drawn) == (1, 1)
    assert drawn_us == pytest.approx(queued_us, rel=0.03)


def graph_of(scheme: Scheme, tiling: Tiling) -> TileGraph:
    return tile_graph(pair(scheme), tiling)


def test_sums_are_promoted_meanwhile_if_they_are_few() -> None:
    few, many = DEEP, wgmma((16, 56, 256), (16, 32, 256))
    assert promoting_us(graph_of(Scheme.TOKEN, few), 0, H200) == 0
    assert promoting_us(graph_of(Scheme.TOKEN, many), 0, H200) == pytest.approx(2 * (90 + 56) / H200.clock_mhz)
    assert promoting_us(tile_graph(ffn_pair(m=16, d_in=512, d_hidden=512, d_out=512, gated=True), many), 0, H200) == 0


def blocks_us(m: int, tiling: Tiling) -> float:
    """The time of a k-step of the first op in which nothing is multiplied."""
    workload = QuantisedFfn(m=m, d_in=4096, d_hidden=14336, d_out=4096, scheme=Scheme.BLOCK).to_workload()
    return H200.clock_mhz * promoting_us(tile_graph(workload, tiling), 0, H200)


def test_scales_of_blocks_cost_less_if_another_warpgroup_multiplies_meanwhile() -> None:
    swapped = wgmma((64, 128, 128), (64, 128, 128), swap_ab=True, num_warps=8)
    alone, together = (wgmma((m, 128, 128), (m, 64, 128), num_warps=warps) for m, warps in ((64, 4), (128, 8)))
    assert blocks_us(128, swapped) == pytest.approx(90 + 10 * 64)
    assert blocks_us(64, alone) == pytest.approx(2 * (90 + 64))
    in_turns = replace(alone, num_warps=8, warpgroups=Warpgroups.PING_PONG)
    assert blocks_us(128, together) == blocks_us(64, in_turns) == 0


def test_a_thread_finishes_fewer_elements_if_operands_are_swapped() -> None:
    swapped, unswapped = (
        finishing_us(graph_of(Scheme.TOKEN, wgmma((16, 56, 256), (16, 32, 256), swap_ab=swap_ab)), 0, H200)
        for swap_ab in (True, False)
    )
    assert unswapped / swapped == pytest.approx(56 / 16)
    assert finishing_us(graph_of(Scheme.INT4, DEEP), 0, H200) == 0  # no part scales its elements


def test_each_stage_of_converted_weights_begins_with_a_gap() -> None:
    op = pair(Scheme.W8A16).tile_ops[0]
    one, two = (converting_us(op, 64, depth, 4, H200) for depth in (128, 256))
    assert 2 * one - two == pytest.approx(CONVERTED_STAGE_CLOCKS / H200.clock_mhz)


def test_instructions_per_word_and_their_issue_decide_how_fast_weights_are_converted() -> None:
    """Not the number of warpgroups: kernels with three were forecast 5 us too fast (few_bits_trials.jsonl.gz)."""
    gap_us = CONVERTED_STAGE_CLOCKS / H200.clock_mhz
    codes, bytes_ = (
        [converting_us(pair(scheme).tile_ops[0], 384, depth, warps, H200) - gap_us for warps in (4, 8, 12)]
        for scheme, depth in ((Scheme.INT4, 512), (Scheme.W8A16, 256))
    )
    for four, eight in zip(codes, bytes_, strict=True):  # as many words
        assert four / eight == pytest.approx(14.5 / 11.6)
    assert codes[0] == codes[2] == pytest.approx(codes[1] * 0.7 / 0.6)
    assert codes[0] == pytest.approx(384 * 512 / 8 * 14.5 / 128 / 0.6 / H200.clock_mhz)


def test_loads_of_few_bits_are_exposed_in_part_though_no_tile_shares_weights() -> None:
    few, many = pair(Scheme.TENSOR), ffn_pair(m=16, d_in=8192, d_hidden=3584, d_out=8192, gated=True)
    costs = [costs_of(tile_graph(one, DEEP), H200, rates_of(H200))[0] for one in (few, many)]
    assert [one.exposed_share for one in costs] == [rates_of(H200).wgmma.exposed_share, 0]
    assert costs[0].part_post_us == PART_POST_SHARE * costs[0].post_us
    assert costs[1].part_post_us == costs[1].post_us
