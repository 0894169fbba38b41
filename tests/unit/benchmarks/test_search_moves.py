"""What a step from a schedule to its neighbour gains, read off recorded jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.search.bench import candidate_json
from benchmarks.search.moves import LEAST_PAIRS, is_asked, rows_of
from tests.support.on_card import fused, schedule
from tuner.core.schedule.ordering import Assignment, Granularity, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.search.seeds import NUM_SEEDS

TILES = (64, 64, 64), (64, 64, 64)
STATIC = schedule(TILES, stages=4, assignment=Assignment.STATIC)
TICKET = schedule(TILES, stages=4, assignment=Assignment.TICKET)
SLICED = STATIC.but(
    ordering=replace(
        STATIC.ordering, granularity=Granularity.CHUNK, sync_width=8, wait_position=WaitPosition.SLICE, run_ahead=100
    ),
)


def job(m: int, trials: Sequence[tuple[Schedule, float]]) -> dict[str, Any]:
    return {
        "target": "h100",
        "workload": {"ops": [{"m": m, "n": 128, "k": 64}, {"m": m, "n": 64, "k": 128}]},
        "trials": [
            {
                "candidate": candidate_json(fused(one)),
                "outcome": "measured",
                "rounds": [[10.0, 10.0 * speedup, 1980, 1980, None]] * 5,
            }
            for one, speedup in trials
        ],
    }


def test_a_step_is_told_by_shape_and_what_changes_together_is_one_axis() -> None:
    jobs = [job(m, [(STATIC, 1.0), (TICKET, faster), (SLICED, 1.2)]) for m, faster in ((1, 0.9), (2, 1.1), (4, 1.05))]
    found = rows_of([*jobs, jobs[0]])
    steps = {(row["axis"], row["before"], row["after"]): row for row in found if row["row"] == "step"}
    drawn = steps["assignment", "static", "ticket"]
    assert (drawn["pairs"], drawn["shapes"], drawn["faster_in"]) == (4, 3, 2)
    assert (drawn["gain"], drawn["least"], drawn["most"]) == (0.05, -0.1, 0.1)
    assert {axis for axis, _, _ in steps} == {"assignment", "waits"}, "of two that differ in both nothing is told"
    assert rows_of(jobs[:2]) == [], "two shapes say nothing"


def test_a_choice_is_named_by_its_step_from_the_best_and_is_better_where_it_beats_all_before() -> None:
    guesses = [(schedule(((64, 64, 64), (64, 64, 64)), stages=2 + i), 0.5) for i in range(NUM_SEEDS - 1)]
    found = rows_of([job(16, [(STATIC, 1.0), *guesses, (TICKET, 1.01), (SLICED, 1.011)])])
    choices = {row["axis"]: (row["trials"], row["better"]) for row in found if row["row"] == "choice"}
    assert choices == {"assignment ticket": (1, 1), "waits": (1, 0)}


def test_the_library_is_told_apart_by_what_was_timed_beside_it() -> None:
    jobs = [job(m, [(STATIC, 1.0), (SLICED, 1.0), (TICKET, 1.02)]) for m in (1, 2, 4)]
    beside = {(row["axis"], row["value"]): row for row in rows_of(jobs) if row["row"] == "beside"}
    assert (beside["assignment", "ticket"]["longer"], beside["assignment", "static"]["longer"]) == (0.02, 0.0)
    assert beside["assignment", "static"]["trials"] == 6


def test_ways_to_launch_are_compared_by_what_was_tried_both_ways() -> None:
    tried = [schedule(TILES, stages=2 + i) for i in range(LEAST_PAIRS)]
    plain = [(one, 1.0 + i / 100) for i, one in enumerate(tried)]
    jobs = [job(m, plain) for m in (1, 2, 4)]
    for one in jobs:
        so = [{**trial, "candidate": {**trial["candidate"], "plan_kind": "fused_pdl"}} for trial in one["trials"]]
        so[-1] = {**so[-1], "rounds": [[10.0, 10.0, 1980, 1980, None]] * 5}
        one["trials"] += so
    (row,) = [row for row in rows_of(jobs) if row["row"] == "launch"]
    assert (row["kind"], row["shapes"], row["pairs"], row["gain"]) == ("fused_pdl", 3, 3 * LEAST_PAIRS, 0.0)
    assert row["behind"] == row["most"] == round(1 - 1.0 / 1.06, 4)


def test_jobs_that_are_short_or_of_more_rows_or_of_no_pair_are_left_out() -> None:
    one = job(64, [(STATIC, 1.0)])
    assert is_asked(one, 1, 64)
    assert not is_asked(one, 2, 64)
    assert not is_asked(one, 1, 32)
    assert not is_asked(one | {"workload": {"ops": one["workload"]["ops"][:1]}}, 1, None)
