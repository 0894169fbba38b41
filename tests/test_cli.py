"""`tuner orders` on the command line; the service's commands are tested with the service."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tuner.cli import main


def test_orders_prints_the_least_traffic_what_each_raster_loses_and_paths() -> None:
    result = CliRunner().invoke(main, ["orders", "4", "4", "--cache", "4", "--list", "2"])
    assert result.exit_code == 0
    first, *lines = result.stdout.splitlines()
    assert first.startswith("4 x 4 tiles, a cache of 4 panels: at least 10 panels from memory; 2,816 paths")
    lost = {line.split()[0]: line for line in lines if "panels" in line}
    assert lost["row"].split()[1:] == ["20", "panels,", "10", "more", "(100%)"]
    assert {"column", "hilbert", "morton", "snake1", "panel2"} <= set(lost)
    assert lines[-4:-3] == [" 0  1  4  6"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["1000", "1000", "--cache", "8"], "the limit is 4 x 4; take a corner of the grid, or the raster hilbert"),
        (["3", "3", "--cache", "1"], "1 panels cannot hold the operands of one tile"),
        (["0", "3", "--cache", "4"], "0 x 3 has no tiles"),
    ],
)
def test_what_has_no_answer_is_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["orders", *arguments])
    assert result.exit_code == 1
    assert sentence in result.stderr
