"""The commands' output if stdout supports less than a terminal does."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from tuner import cli
from tuner.client import cli as client_cli
from tuner.client.delivery.output import print_sentences, print_table, table_width
from tuner.client.terminal.render import jobs_table, trials_table


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["prove", "--help"]], ids=" ".join)
@pytest.mark.parametrize("command", [cli.main, client_cli.main], ids=["tuner", "tuner-client"])
def test_a_full_disk_is_told_in_a_line_whatever_was_to_be_printed(
    command: click.Group, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command is client_cli.main:
        arguments = ["diff" if one == "prove" else one for one in arguments]
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            command(arguments)
    prefix = "Error" if command is cli.main else "tuner-client"
    said = f"{prefix}: the output cannot be written: No space left on device\n"
    assert (ended.value.code, capsys.readouterr().err) == (1, said)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_an_id_is_whole_in_the_table_of_jobs_however_narrow_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    job = {
        "id": "job-0123456789ab",
        "workload": "ffn bf16 M=256 4096 -> 14336 -> 4096 silu gated",
        "target": "simulated:h200",
        "simulated": True,
        "state": "succeeded",
        "num_trials": 60,
        "budget": {"trials": 60},
        "best_us": 101.25,
        "library_us": 98.75,
        "best_speedup": 0.975,
    }
    print_table(jobs_table([job], table_width()))
    printed = capsys.readouterr().out
    for word in ("job-0123456789ab", "succeeded", "simulated:h200", "0.97x", "60/60"):
        assert word in printed, printed
    assert max(map(len, printed.splitlines())) <= width
    assert width >= 120 or len(printed.splitlines()) == 3


def test_a_trial_takes_a_line_and_its_schedule_the_next_ones_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    schedule = "wgmma 16x56x256+16x32x256 s6 i6 window2 w4 cluster1x1x2 | row+row producer_first chunk8-sync by slice"
    trial = {
        "number": 12,
        "simulated": True,
        "candidate": {"plan_kind": "two_launches_pdl", "text": schedule},
        "outcome": {"kind": "measured", "time_us": 163.25, "speedup": 1.061},
    }
    print_table(trials_table([trial], table_width()))
    heading, figures, *below = capsys.readouterr().out.splitlines()
    assert heading.split() == ["trial", "plan", "kind", "outcome", "time", "speed-up"]
    assert figures.split() == ["12", "two", "launches", "pdl", "(simulated)", "measured", "163.2", "µs", "1.06x"]
    assert " ".join(line.strip() for line in below) == schedule
    assert len(below) == 2


def test_sentences_continue_between_words_along_a_drawing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    print_sentences(
        ["One sentence that is longer.", "", "┌─▶ task 1 waits for signal 7", "│     │ of task-2 of the second op"]
    )
    assert capsys.readouterr().out.splitlines() == [
        "One sentence that is",
        "  longer.",
        "",
        "┌─▶ task 1 waits for",
        "│     signal 7",
        "│     │ of task-2 of the",
        "│     │   second op",
    ]
