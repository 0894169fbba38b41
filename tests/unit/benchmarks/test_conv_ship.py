"""Winners of convolutions that ship: those of the report, and the first trials of jobs of these shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.conv import search
from benchmarks.conv.rows import rows
from tuner.core.legal.legality import check_candidate
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.objective import Regime
from tuner.core.space.space import space_of
from tuner.core.trial.job import Objective
from tuner.search.guesses.priors import Asked, choose_priors
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER

H200 = CATALOGUE["h200"]
ROWS = {f"conv/{row.name}": search.workload_of(row) for row in rows()}
SHIPPED = ShippedWinners().of("h200")


def test_what_ships_is_what_the_report_has(tmp_path: Path) -> None:
    search.ship("h200", tmp_path)
    made = json.loads((tmp_path / "h200.json").read_text())
    shipped = json.loads((FOLDER / "h200.json").read_text())
    assert made == {name: row for name, row in shipped.items() if name.startswith("conv/")}, "run search --ship"
    found = {one.source.removeprefix("shipped "): one.workload for one in SHIPPED}
    assert {name: found[name] for name in made} == {name: ROWS[name] for name in made}


@pytest.mark.parametrize("name", ["conv/r50-s1-3x3-1x1/b1", "conv/r38-3x3-3x3-512/b1", "conv/r50-s1-1x1-3x3/b4"])
def test_a_job_of_a_measured_shape_first_tries_what_was_best_there(name: str) -> None:
    workload = ROWS[name]
    asked = Asked(
        space=space_of(workload, H200), objective=Objective(regime=Regime.BURST), kernel_version="0", num_trials=24
    )
    own = [one for one in SHIPPED if one.source == f"shipped {name}"]
    priors = [one.candidate for one in choose_priors(asked, SHIPPED)]
    first = priors[: len(own)]
    assert min(own, key=lambda one: one.time_us).candidate in first
    assert set(first) == {one.candidate for one in own}, "each kind's best, before what other shapes have"
    for one in priors:
        check_candidate(workload, H200, one)
