"""The protocol test computes split tails independently: they equal those of the plans, and a plan that splits other
tiles is detected."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings

from tests.compile.test_protocol import GPU, Replica
from tests.support.cases import ordered_graphs
from tests.support.protocol.cases import CASES, plain_schedules
from tests.support.protocol.kernel import faults, tables_for
from tests.support.protocol.tails import in_whole_waves
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import make_paired_plans
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule

#: Schedules of "parts", with a tail.
SCHEDULES = plain_schedules("parts", SplitTiles.TAIL)
TICKET = SCHEDULES[f"row1 task {Assignment.TICKET}"]
SIDES = TICKET.but(ordering=replace(TICKET.ordering, assignment=Assignment.STATIC, partition=4))


@pytest.mark.slow
@settings(max_examples=100)
@given(ordered_graphs())
def test_the_tail_of_a_plan_is_what_the_definition_says(drawn: tuple[TileGraph, Ordering, Gpu]) -> None:
    graph, ordering, gpu = drawn
    assume(ordering.assignment is not Assignment.SHARES)
    ordering = replace(ordering, split_tiles=SplitTiles.TAIL)
    plans = [make_plan(graph, ordering, gpu)]
    if len(graph.op_indices) == 2 and ordering.assignment.is_static:
        plans += make_paired_plans(graph, ordering, gpu)
    for plan, partition in zip(plans, (ordering.partition, 0, 0), strict=False):
        split = {tuple(task[:3]) for task in plan.tasks.tolist() if task[7] > 0}
        may_be = {tuple(task[:3]) for task in plan.tasks.tolist() if graph.num_parts(task[0]) > 1}
        assert split == may_be - in_whole_waves(plan, partition)


def planned(chosen: Schedule, which: SplitTiles) -> tuple[Plan, Ordering]:
    ordering = replace(chosen.ordering, split_tiles=which)
    candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=chosen.but(ordering=ordering))
    (plan,) = plans_for(CASES["parts"][0], GPU, candidate)
    return plan.plan, ordering


def test_the_tail_is_some_tiles_of_the_last_wave_of_a_launch_or_of_a_side() -> None:
    """350 and 230 tiles on 32 CTAs, or on 16 CTAs for each side."""
    for chosen, tails in ((TICKET, {1: 4}), (SIDES, {0: 14, 1: 6})):
        plan, ordering = planned(chosen, SplitTiles.TAIL)
        tables = tables_for(*CASES["parts"], ordering, [plan])
        split = [tile for tile in range(tables.first_tile[-1]) if tables.num_units(tile) > 1]
        assert {op: sum(tile in range(*tables.first_tile[op : op + 2]) for tile in split) for op in tails} == tails
        assert len(split) == sum(tails.values())


@pytest.mark.parametrize(("asked", "launched"), [(SplitTiles.TAIL, SplitTiles.ALL), (SplitTiles.ALL, SplitTiles.TAIL)])
def test_a_plan_that_splits_other_tiles_shows(asked: SplitTiles, launched: SplitTiles) -> None:
    for chosen in (TICKET, SIDES):
        (other, ordering), (plan, _) = planned(chosen, asked), planned(chosen, launched)
        tables = tables_for(*CASES["parts"], ordering, [other])
        found = faults(Replica(plan, tables, random.Random(0)).record(1), tables, ((plan,),))
        assert "violations, the first is a tile with different parts" in found[0]


def test_a_split_tile_of_which_a_slot_misses_a_part_is_reported() -> None:
    plan, ordering = planned(TICKET, SplitTiles.TAIL)
    tables = tables_for(*CASES["parts"], ordering, [plan])
    right = Replica(plan, tables, random.Random(0)).record(3)
    assert right.arrivals == ([24] * 4,)
    (found,) = faults(replace(right, arrivals=([24, 24, 23, 24],)), tables, ((plan,),))
    assert found == "the arrivals of workspace 0 are [24, 24, 23, 24], not [24, 24, 24, 24]"
