"""Weights prefetched into the L2 at the start: which tasks have weights beyond the ring, and which CTAs know their
first task."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import H200, ordering, simt, tiling, wgmma
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_schedule
from tuner.core.legal.wgmma import STARTUP_PREFETCHES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment, Ordering, SplitTiles
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.errors import IllegalSchedule
from tuner.ops.gemm.pairs import ffn_pair

#: 16 and 24 k-steps of 64.
PAIR = ffn_pair(m=64, d_in=1024, d_hidden=1536, d_out=1024)


def on_few_sms(assignment: Assignment = Assignment.STATIC, **fields: Any) -> Ordering:
    """A schedule on few SMs, so that each CTA has several tasks."""
    return ordering(assignment=assignment, **{"reserved_sms": 112, **fields})


STATIC = on_few_sms()


def check(chosen: Tiling, order: Ordering = STATIC, workload: Workload = PAIR) -> None:
    check_schedule(workload, H200, Schedule.of(tiling=chosen, ordering=order))


def ring(num_stages: int, stages: int, **fields: Any) -> Tiling:
    return wgmma((64, 64, 64), num_stages=num_stages, startup_prefetch=stages, **fields)


def legal(chosen: Tiling, order: Ordering = STATIC) -> list[int]:
    """The legal numbers of stages for the tiling."""
    numbers = []
    for stages in range(10):
        try:
            check(replace(chosen, startup_prefetch=stages), order)
        except IllegalSchedule:
            continue
        numbers.append(stages)
    return numbers


@pytest.mark.parametrize("assignment", [Assignment.STATIC, Assignment.SHARES, Assignment.FIRST_WAVE])
def test_a_queue_or_a_wave_may_begin_with_each_number_of_stages(assignment: Assignment) -> None:
    assert legal(ring(4, 0), on_few_sms(assignment)) == list(STARTUP_PREFETCHES)


def test_nobody_knows_what_a_draw_will_begin_with() -> None:
    sentence = (
        "startup prefetch of 2 stages with ticket: the first task of a CTA is known only for queues and first waves"
    )
    with pytest.raises(IllegalSchedule, match=sentence):
        check(ring(4, 2), on_few_sms(Assignment.TICKET))


def test_what_brings_as_many_stages_as_fewer_would_is_a_second_name() -> None:
    """Of 24 k-steps, a ring of 14 leaves 10, and one of 16 leaves 8; in two parts of 12, a ring of 8 leaves 4, one of
    11 leaves 1, and one of 12 none."""
    wide = ring(14, 0, input_stages=2)
    assert legal(wide) == legal(replace(wide, num_stages=16)) == [0, 2, 4, 8]
    parts = replace(wide, split_k=(1, 2), tiles=(replace(wide.tiles[0], k=128), wide.tiles[1]), num_stages=8)
    assert legal(parts) == [0, 2, 4]
    assert legal(replace(parts, num_stages=11)) == [0, 2]
    assert legal(replace(parts, num_stages=12)) == [0]
    sentence = "8 stages: the longest task of a CTA has 12 k-steps, 4 more than a ring of 8: use 4"
    with pytest.raises(IllegalSchedule, match=sentence):
        check(replace(parts, startup_prefetch=8))


def test_a_tail_leaves_whole_tiles() -> None:
    parts = ring(9, 0, input_stages=2, split_k=(2, 2))
    tail = on_few_sms(split_tiles=SplitTiles.TAIL)
    assert legal(parts) == [0, 2, 4]
    assert legal(parts, tail) == [0, 2, 4, 8]


def test_ctas_that_share_k_have_their_own_steps_alone() -> None:
    assert legal(ring(9, 0, input_stages=2, cluster_k=2)) == [0, 2, 4]
    assert legal(ring(6, 0, input_stages=2, cluster_k=4)) == [0]


@pytest.mark.parametrize("stages", [-2, 1, 3, 16])
def test_other_numbers_are_refused(stages: int) -> None:
    with pytest.raises(IllegalSchedule, match=f"startup prefetch of {stages} stages: use 0, 2, 4, 8"):
        check(ring(4, stages))


def test_other_engines_have_no_such_prefetch() -> None:
    with pytest.raises(IllegalSchedule, match="startup prefetch of 4 stages: not supported by the mma engine; use 0"):
        check(replace(tiling((64, 64), (64, 64)), startup_prefetch=4))
    with pytest.raises(IllegalSchedule, match="startup prefetch of 2 stages: not supported by the simt engine; use 0"):
        check(simt((1, 32, 256), startup_prefetch=2), workload=ffn_pair(m=1, d_in=1024, d_hidden=1536, d_out=1024))


def test_it_is_in_the_json_form_and_the_line_where_it_is_asked_for() -> None:
    plain = Schedule.of(tiling=ring(4, 0), ordering=STATIC)
    asked = plain.but(tiling=ring(4, 4, window=2))
    assert "startup_prefetch" not in plain.to_json()["tiling"]
    assert Schedule.from_json(json.loads(json.dumps(asked.to_json()))) == asked
    assert asked.digest != asked.but(tiling=ring(4, 8, window=2)).digest
    assert " s4 i3 window2 prefetch4 w4 " in str(asked)


def test_it_is_offered_around_a_schedule_alone() -> None:
    space = space_of(PAIR, H200)
    assert {one.startup_prefetch for one in space.tilings} == {0}
    around = Schedule.of(tiling=ring(4, 0), ordering=STATIC)
    near = [one for one in space.neighbours(around) if one.tiling.startup_prefetch]
    assert [one.tiling for one in near] == [ring(4, stages) for stages in (2, 4, 8)]
    assert {one.ordering for one in near} == {STATIC}
    drawn = around.but(ordering=on_few_sms(Assignment.TICKET))
    assert {one.tiling.startup_prefetch for one in space.neighbours(drawn)} == {0}
