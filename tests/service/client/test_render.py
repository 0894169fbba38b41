"""The output of watching a job."""

from __future__ import annotations

import io
import re
from itertools import groupby
from typing import Any

import pytest
from rich.console import Console

from tuner.client import Client
from tuner.client.delivery import output
from tuner.client.terminal import render

BUDGET = {"trials": 60, "seconds": 100.0}


def test_the_pace_is_what_an_event_says_of_it() -> None:
    figures = {"eta_s": 11.6, "card_share": 0.843, "since_progress": 7}
    assert render.pace_line(figures, BUDGET) == "about 12 s left, card busy 84 %"
    assert render.pace_line(figures, {**BUDGET, "patience": 30}).endswith(", 7/30 without progress")
    both = render.trials_of(16, 60, "searching"), render.trials_of(60, 60, "succeeded")
    assert both == ("16/60 trials", "60/60 trials")
    ended = [render.trials_of(number, 60, state) for number, state in ((0, "cancelled"), (1, "failed"), (12, "finals"))]
    assert ended == ["0 trials", "1 trial", "12 trials"], "no more will follow"
    assert render.trials_of(72, 60, "searching") == "72 trials", "a ladder's job also tries its neighbours' results"
    assert render.pace_line({"eta_s": None, "card_share": None}, {**BUDGET, "patience": None}) == ""
    assert render.pace_line({}, BUDGET) == "", "an older service does not say"


def shown(client: Client, job_id: str, **console: Any) -> tuple[str, str]:
    """The last state, and what was printed."""
    file = io.StringIO()
    state = render.progress(client.job(job_id), client.events(job_id), Console(file=file, width=120, **console))
    return state, file.getvalue()


def test_plain_lines_tell_each_state_in_its_turn(client: Client, job_id: str) -> None:
    state, text = shown(client, job_id)
    assert state == "succeeded"
    states = [line.split(": ")[0] for line in text.splitlines()[1:]]
    # On a busy machine, a state is reported again after a while.
    assert [name for name, _ in groupby(states)] == ["queued", "searching", "finals", "succeeded"]
    assert "\x1b" not in text
    assert "(simulated)" in text


def test_a_terminal_gets_a_bar(client: Client, job_id: str) -> None:
    state, text = shown(client, job_id, force_terminal=True)
    assert state == "succeeded"
    assert "12/12 trials" in text
    assert "━" in text


def test_the_table_has_a_row_per_finalist_the_verdict_and_the_mark(client: Client, job_id: str) -> None:
    best = client.best(job_id)
    table = render.results_table(best)
    assert table.row_count == len(best["finals"])
    assert f"Verdict: {render.headline(best)} (" in str(table.caption)
    real = render.results_table({**best, "simulated": False, "target": "h200"})
    file = io.StringIO()
    Console(file=file, width=200).print(real)
    assert "simulated" not in file.getvalue()


def test_a_finalist_that_failed_shows_why(client: Client, job_id: str) -> None:
    best = client.best(job_id)
    lost = {**best["finals"][-1], "time_us": None, "speedup": None, "speedup_ci95": None, "reason": "it hung"}
    file = io.StringIO()
    Console(file=file, width=200).print(render.results_table({**best, "finals": [*best["finals"][:-1], lost]}))
    assert "it hung" in file.getvalue()


def test_energy_is_shown_where_it_was_measured(client: Client, job_id: str) -> None:
    best = client.best(job_id)
    file = io.StringIO()
    rows = [{**row, "energy_mj": 31.44 if i == 0 else None} for i, row in enumerate(best["finals"])]
    Console(file=file, width=250).print(render.results_table({**best, "finals": rows}))
    assert file.getvalue().count(" mJ") == 1
    assert "31.4 mJ" in file.getvalue()
    file = io.StringIO()
    rows = [{**row, "energy_mj": None} for row in best["finals"]]
    Console(file=file, width=250).print(render.results_table({**best, "finals": rows}))
    assert "energy" not in file.getvalue(), "no column is empty"


def test_a_truncated_trial_and_a_remark_are_reported() -> None:
    trial = {
        "number": 3,
        "simulated": False,
        "candidate": {"plan_kind": "fused", "text": "a schedule"},
        "outcome": {"kind": "measured", "time_us": 9.0, "speedup": 0.5, "truncated": True, "remark": "too noisy"},
    }
    file = io.StringIO()
    Console(file=file, width=200).print(render.trials_table([trial]))
    assert "measured (truncated)" in file.getvalue()
    assert "a schedule (too noisy)" in file.getvalue()


def test_what_stands_in_brackets_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "pip install '.[worker-cuda13]'"
    trial = {
        "number": 3,
        "simulated": False,
        "candidate": {"plan_kind": "fused", "text": "a schedule"},
        "outcome": {"kind": "failed", "failure": "launch", "reason": reason},
    }
    output.print_table(render.trials_table([trial]))
    output.plain_console(width=120).print(reason)
    assert capsys.readouterr().out.count(reason) == 2
    file = io.StringIO()
    with render.live_bar(output.plain_console(file=file, width=120, force_terminal=True)) as bar:
        bar.add_task("", line=reason)
    assert reason in re.sub("\x1b[^m]*m", "", file.getvalue())


def test_a_prior_says_where_it_comes_from_and_what_it_gave() -> None:
    prior = {
        "candidate": {"plan_kind": "two_launches"},
        "source": "job-0123456789ab",
        "workload": "ffn fp16 M=16",
        "found_speedup": 1.118,
        "is_adapted": True,
        "simulated": False,
        "trial_number": 3,
        "outcome": "measured",
        "time_us": 63.21,
        "speedup": 1.1,
    }
    found = "  two launches (job-0123456789ab, ffn fp16 M=16: 1.12x there, adapted)"
    assert render.prior_line(prior) == f"{found}: trial 3, 63.2 µs, 1.10x"
    assert render.prior_line({**prior, "outcome": "failed"}) == f"{found}: trial 3, failed"
    untried = {**prior, "outcome": None, "trial_number": None, "is_adapted": False, "simulated": True}
    assert render.prior_line(untried) == found.replace(", adapted", "") + ": not tried yet (simulated)"


def test_the_quality_of_forecasts_is_reported_in_one_line() -> None:
    known = {"num_trials": 41, "rank_correlation": 0.8612, "regret": 0.0123, "reason": ""}
    assert render.forecast_line(known) == (
        "rank correlation 0.86 over 41 fused trials; the best of the ten candidates with the shortest forecasts is "
        "1.2 % slower than the best measured"
    )
    assert render.forecast_line({**known, "reason": "too few: 3"}) == "too few: 3"
