"""What commands print where stdout takes less than a terminal does."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from tuner import cli
from tuner.client import cli as client_cli


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
