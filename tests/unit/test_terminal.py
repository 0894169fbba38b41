"""What commands print where stdout takes less than a terminal does."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from tuner import cli
from tuner.client import cli as client_cli
from tuner.client.delivery.output import print_table, table_width
from tuner.client.terminal.render import jobs_table


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
