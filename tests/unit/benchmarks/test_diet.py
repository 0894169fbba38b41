"""Which values no schedule near the best uses: judged where they were tried enough, kept where a winner has them."""

from __future__ import annotations

from typing import Any

from benchmarks.search.bench import candidate_json
from benchmarks.search.diet import LEAST_TRIALS, rows_of, tallies, values_of
from tests.support.on_card import fused, schedule
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.schedule import Schedule

TILES = (64, 64, 64), (64, 64, 64)
STATIC = schedule(TILES, stages=4, assignment=Assignment.STATIC)
TICKET = schedule(TILES, stages=4, assignment=Assignment.TICKET)


def job(name: str, *trials: tuple[Schedule, float], dropped: str | None = None) -> dict[str, Any]:
    return {
        "workload": {"name": name},
        "trials": [
            {
                "candidate": candidate_json(fused(one)),
                "outcome": "measured",
                "rounds": [[10.0, 10.0 * speedup, 1980, 1980, dropped]] * 5,
            }
            for one, speedup in trials
        ],
    }


def rows(jobs: list[dict[str, Any]], *kept: tuple[Schedule, float]) -> dict[tuple[str, str], dict[str, Any]]:
    found, of = tallies(jobs, kept)
    return {(row["axis"], row["value"]): row for row in rows_of(found, of, within=0.01)}


def test_a_value_that_is_never_near_the_best_is_unused() -> None:
    found = rows([job("a", (STATIC, 1.2), *[(TICKET, 1.1)] * LEAST_TRIALS)])
    ticket, static = found["assignment", "ticket"], found["assignment", "static"]
    assert (ticket["tried"], ticket["near"], ticket["unused"], ticket["judged"]) == (LEAST_TRIALS, 0, True, True)
    assert ticket["behind"] == round(1 - 1.1 / 1.2, 4)
    assert (static["near"], static["unused"], static["judged"]) == (1, False, False)


def test_a_trial_near_the_best_of_any_row_or_a_kept_winner_keeps_a_value() -> None:
    slow = job("a", (STATIC, 1.2), *[(TICKET, 1.1)] * LEAST_TRIALS)
    assert not rows([slow, job("b", (STATIC, 1.0), (TICKET, 0.995))])["assignment", "ticket"]["unused"]
    assert not rows([slow], (TICKET, 0.995))["assignment", "ticket"]["unused"]
    assert rows([slow], (STATIC, 1.0))["assignment", "ticket"]["unused"]
    behind = rows([slow], (TICKET, 0.98))["assignment", "ticket"]
    assert (behind["kept"], behind["kept_near"], behind["unused"]) == (1, 0, True)


def test_what_was_tried_in_few_trials_or_few_rows_is_not_judged() -> None:
    few = job("a", (STATIC, 1.2), *[(TICKET, 1.1)] * (LEAST_TRIALS - 1))
    assert not rows([few])["assignment", "ticket"]["judged"]
    others = [job(name, (STATIC, 1.0)) for name in "bcd"]
    assert not rows([job("a", (STATIC, 1.2), *[(TICKET, 1.1)] * LEAST_TRIALS), *others])["assignment", "ticket"][
        "judged"
    ]


def test_a_pair_is_another_row_on_another_card() -> None:
    here, there = job("a", (STATIC, 1.2), (TICKET, 1.1)), job("a", (STATIC, 1.0), (TICKET, 1.1)) | {"target": "h100"}
    ticket = rows([here, there])["assignment", "ticket"]
    assert (ticket["rows"], ticket["near_on"]) == (2, {"h100": 1, "h200": 0})


def test_a_preview_says_nothing() -> None:
    assert not rows([job("a", (STATIC, 1.2), dropped="preview")])


def test_ops_share_their_axes_and_amounts_are_none_or_more() -> None:
    values = values_of(STATIC)
    assert ("raster", "row") in values
    assert ("window", "0") in values
    assert not any(axis.startswith("tile") for axis, _ in values)
