"""A custom order: a table of tiles in a schedule, proven like any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tuner.client.documents.documents import Candidate as Document
from tuner.client.exports.axes import axes_of
from tuner.core.insight.prove import refused
from tuner.core.legal.legality import check_schedule
from tuner.core.plan.build import global_order
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.ordering import Assignment, Interleave, InterleaveKind, Ordering, Raster, RasterKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.errors import IllegalSchedule, InvalidInput, LivenessError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.model.pool import canonical

GPU = CATALOGUE["h200"]
WORKLOAD = ffn_pair(m=256, d_in=256, d_hidden=256, d_out=256)
TILING = Tiling(tiles=(Tile(m=64, n=64, k=64), Tile(m=64, n=64, k=64)), num_stages=2, num_warps=4)
#: One SM for each of eight CTAs, so that each has several tasks.
FEW = {"reserved_sms": GPU.num_sms - 8}
GRID = ((4, 4), (4, 4))

Table = Sequence[tuple[int, ...]]


def given(tiles: Table, **order: Any) -> Schedule:
    merge = Interleave(kind=InterleaveKind.GIVEN, tiles=tuple(tiles))
    return Schedule.of(tiling=TILING, ordering=Ordering(rasters=(Raster(), Raster()), interleave=merge, **FEW | order))


def table_of(schedule: Schedule) -> list[tuple[int, ...]]:
    columns = global_order(tile_graph(WORKLOAD, schedule.tiling), schedule.ordering)
    return [cast(tuple[int, ...], tuple(map(int, tile))) for tile in zip(*columns, strict=True)]


PLAIN = [(op, row, col) for op in range(2) for row in range(4) for col in range(4)]


@pytest.mark.parametrize(
    "rule",
    [
        Ordering(rasters=(Raster(), Raster()), interleave=Interleave(kind=InterleaveKind.HALF_ROWS)),
        Ordering(rasters=(Raster(), Raster()), interleave=Interleave(kind=InterleaveKind.BANDS, rows=1, lag=1)),
        Ordering(rasters=(Raster(kind=RasterKind.HILBERT), Raster(kind=RasterKind.COLUMN))),
    ],
    ids=str,
)
@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.TICKET])
def test_a_rules_order_as_a_table_gives_the_rules_plan(rule: Ordering, assignment: Assignment) -> None:
    by_rule = Schedule.of(tiling=TILING, ordering=replace(rule, assignment=assignment, **FEW))
    by_table = given(table_of(by_rule), assignment=assignment)
    (one,), (other,) = (plans_for(WORKLOAD, GPU, fused(schedule)) for schedule in (by_rule, by_table))
    assert one.plan.table == other.plan.table


def test_whether_its_tasks_end_is_the_proofs_to_say_and_the_witness_names_who_waits() -> None:
    backwards = PLAIN[::-1]
    check_schedule(WORKLOAD, GPU, given(backwards))
    with pytest.raises(LivenessError) as stuck:
        plans_for(WORKLOAD, GPU, fused(given(backwards)))
    assert "down" in "\n".join(refused(stuck.value))
    #: If each tile has its own CTA, any order terminates.
    assert plans_for(WORKLOAD, GPU, fused(given(backwards, reserved_sms=0, assignment=Assignment.STATIC)))


def test_separate_launches_take_each_ops_own_order() -> None:
    mixed = sorted(PLAIN, key=lambda tile: (tile[1], tile[0], -tile[2]))
    schedule = canonical(PlanKind.TWO_LAUNCHES, given(mixed))
    first, second = plans_for(WORKLOAD, GPU, Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=schedule))
    for op, one in enumerate((first, second)):
        assert [tuple(map(int, task[:3])) for task in one.plan.tasks] == [tile for tile in mixed if tile[0] == op]


@pytest.mark.parametrize(
    ("tiles", "words"),
    [
        (PLAIN[1:], r"has no tile \[0, 0, 0\]: list each of 32 once \(up 4 x 4 and down 4 x 4\)"),
        ([*PLAIN, PLAIN[3]], r"tile 32 .*\[0, 0, 3\], occurs twice"),
        ([(0, 4, 0), *PLAIN], r"tile 0 .*is \[0, 4, 0\]: use op, row and column"),
        ([(2, 0, 0), *PLAIN], r"tile 0 .*is \[2, 0, 0\]"),
        ([(0, -1, 0), *PLAIN], r"tile 0 .*is \[0, -1, 0\]"),
        ([(0, 0), *PLAIN], r"tile 0 .*is \[0, 0\]"),
        ([(0, True, 0), *PLAIN], r"tile 0 .*is \[0, True, 0\]"),
    ],
)
def test_a_table_that_has_not_each_tile_once_is_refused(tiles: Table, words: str) -> None:
    with pytest.raises(IllegalSchedule, match=words):
        check_schedule(WORKLOAD, GPU, given(tiles))


def test_a_table_belongs_to_a_given_order_and_has_a_largest_size() -> None:
    own = given(PLAIN)
    for merge, words in (
        (Interleave(tiles=tuple(PLAIN)), "only a given order may have"),
        (Interleave(kind=InterleaveKind.BANDS, rows=1, tiles=tuple(PLAIN)), "only a given order may have"),
        (Interleave(kind=InterleaveKind.GIVEN, rows=1, tiles=tuple(PLAIN)), "has no bands"),
    ):
        with pytest.raises(IllegalSchedule, match=words):
            check_schedule(WORKLOAD, GPU, own.but(ordering=replace(own.ordering, interleave=merge)))
    large = ffn_pair(m=4096, d_in=256, d_hidden=4096, d_out=64)
    with pytest.raises(IllegalSchedule, match=r"4160 tiles .*at most 4096"):
        check_schedule(large, GPU, own)
    with pytest.raises(IllegalSchedule, match="row"):  # a block of one tile has only one path
        check_schedule(WORKLOAD, GPU, own.but(ordering=replace(own.ordering, rasters=(Raster(width=2), Raster()))))


def test_its_json_is_the_table_and_its_line_says_that_there_is_one() -> None:
    schedule = given(PLAIN)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    with pytest.raises(InvalidInput, match="a table of tiles, which does not fit in a line: use"):
        read_line(str(schedule))
    assert str(schedule) != str(given(PLAIN[::-1]))
    exported = axes_of(cast(Document, {"plan_kind": "fused", "schedule": schedule.to_json()}))
    assert exported["interleave_tiles"] == str(schedule.to_json()["ordering"]["interleave"]["tiles"])
