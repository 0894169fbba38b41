"""Studies from the literature, each run by one command, with the numbers of `tuner orders` and of the simulator."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.service.client.conftest import Run
from tests.support.lanes import soaked
from tests.support.repository import ROOT
from tuner.cli import main as tuner_cli
from tuner.client import Client
from tuner.client.exits import ExitCode
from tuner.core.model.forecast import forecast_us
from tuner.core.plan.order.tile_paths import TileGrid
from tuner.core.problem.asked import workload_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import Candidate

GPU = CATALOGUE["h200"]
#: Grids of 4 x 4 tiles.
PAIR = ["--m", "256", "--d-in", "256", "--d-hidden", "256", "--d-out", "256"]
LINE = "mma 64x64x64+64x64x64 s3 w4 | row+row producer_first row-sync static 1/SM"
ONE = "mma 64x64x64 s3 w4 | row producer_first row-sync static 1/SM"


def study(run: Run, client: Client, *command: str) -> dict[str, Any]:
    """The output of one command after its job has ended."""
    job = json.loads(run("submit", *command, "--json").stdout)
    assert run("watch", job["id"]).exit_code == ExitCode.OK
    return dict(client.study(job["id"])) | {"pair": job["pair"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "names"),
    [
        ("rasters", {"row+row", "column+column", "morton+morton", "hilbert+hilbert"}),
        *soaked(("launches", {"fused", "two launches", "two streams"})),
        *soaked(("merges", {"producer_first", "half_rows", "bands1", "bands2"})),
        *soaked(("shares", {"split-stream static", "ticket"})),
    ],
)
def test_each_study_is_one_command_whose_members_share_rounds_and_have_the_simulators_forecast(
    run: Run, client: Client, sweep: str, names: set[str]
) -> None:
    found = study(run, client, "ffn", *PAIR, "--sweep", sweep)
    library, *ours = found["members"]
    assert library["varied"] == "library"
    assert {one["varied"] for one in ours} >= names
    assert found["num_rounds"] >= 10
    workload = workload_of(found["pair"])
    measured = [one for one in ours if not one["reason"]]
    assert all(one["reason"].startswith("simulated: ") for one in ours if one not in measured), "the twin fails a few"
    assert len(measured) > len(ours) // 2
    for one in measured:
        candidate = Candidate.from_json({name: one["candidate"][name] for name in ("plan_kind", "schedule")})
        assert one["forecast_us"] == pytest.approx(forecast_us(workload, GPU, candidate))
        low, high = one["interval_us"]
        assert low <= one["time_us"] <= high


# In CI, the panels of a pair are those of the explorer.
@pytest.mark.soak
def test_the_panels_of_a_product_are_those_of_tuner_orders(run: Run, client: Client, tmp_path: Path) -> None:
    chain = tmp_path / "one.json"
    chain.write_text(json.dumps({"m": 256, "ops": [{"name": "up", "source": "x", "n": 256, "k": 256}]}))
    found = study(run, client, "chain", str(chain), "--schedule", ONE, "--sweep", "rasters")
    printed = CliRunner().invoke(tuner_cli, ["orders", "4", "4", "--cache", "4"]).stdout
    counted = {name: int(panels) for name, panels in re.findall(r"^  (\S+) +(\d+) panels", printed, re.MULTILINE)}
    own = {one["varied"]: one["panels"] for one in found["members"][1:]}
    assert own.keys() >= {"row", "column", "morton", "hilbert", "snake2"}
    assert own == {name: counted[name] for name in own}


def test_the_panels_of_a_pair_are_those_of_the_explorer(run: Run, client: Client) -> None:
    found = study(run, client, "ffn", *PAIR, "--schedule", LINE, "--sweep", "merges")
    grid = TileGrid(num_rows=4, num_cols=4, second_cols=4, cache_size=4)
    counted = {one.name(is_pair=True): grid.steps(grid.path_of(one))[-1].total for one in grid.orders()}
    own = {one["varied"]: one["panels"] for one in found["members"][1:]}
    assert own.keys() == {"producer_first", "half_rows", "bands1", "bands2"}
    assert own == {name: counted[f"{name}.row"] for name in own}


def test_a_study_is_a_table_with_a_plot_and_leaves_as_a_picture_and_as_columns(
    run: Run, client: Client, tmp_path: Path
) -> None:
    job = json.loads(run("submit", "ffn", *PAIR, "--schedule", LINE, "--sweep", "merges", "--json").stdout)
    watched = run("watch", job["id"]).stdout
    printed = run("study", job["id"]).stdout
    assert printed == watched
    assert [printed.count(mark) for mark in "●◂▸"] in ([4, 2, 1], [4, 1, 2], [5, 1, 1])  # the legend has both names
    assert "half_rows" in printed
    picture, columns = tmp_path / "study.svg", tmp_path / "study.csv"
    assert run("study", job["id"], "-o", str(picture)).exit_code == ExitCode.OK
    assert picture.read_text().count("<circle") == 5
    assert run("study", job["id"], "--cache", "8", "-o", str(columns)).exit_code == ExitCode.OK
    rows = list(csv.DictReader(columns.read_text().splitlines()))
    assert [row["varied"] for row in rows] == [one["varied"] for one in client.study(job["id"])["members"]]
    assert {row["simulated"] for row in rows} == {"True"}
    assert all(float(row["low_us"]) < float(row["high_us"]) for row in rows[1:])
    wrong = run("study", job["id"], "-o", str(tmp_path / "study.pdf"))
    assert (wrong.exit_code, "ends with .svg, .csv, .json" in wrong.stderr) == (ExitCode.USAGE, True)


def test_a_study_that_finds_nothing_to_vary_says_so(run: Run) -> None:
    result = run(
        "submit", "ffn", "--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "256", "--sweep", "merges"
    )
    assert result.exit_code == ExitCode.REFUSED
    assert "gives no other merges" in result.stderr


SPIRAL = (ROOT / "docs/schedule-space.md").read_text().partition("```python\n# spiral.py")[2].partition("```")[0]


def test_an_order_of_ones_own_is_made_here_and_sent_as_a_table(run: Run, client: Client, tmp_path: Path) -> None:
    """Covers the documented function, and a table that waits for a later tile, whose trial has the witness."""
    code, table = tmp_path / "spiral.py", tmp_path / "backwards.json"
    code.write_text("#" + SPIRAL)
    tiles = [[op, row, col] for op in range(2) for row in range(4) for col in range(4)]
    table.write_text(json.dumps(tiles[::-1]))
    few = LINE.replace("1/SM", "1/SM less 124 SMs")
    orders = ["--order", f"{code}:spiral", "--order", str(table)]
    job = json.loads(run("submit", "ffn", *PAIR, "--schedule", few, *orders, "--json").stdout)
    assert run("watch", job["id"]).exit_code == ExitCode.OK
    base, spiral, backwards = client.study(job["id"])["members"][1:]
    assert [one["varied"].split()[-1] for one in (spiral, backwards)] == ["given-spiral", "given-backwards"]
    sent = [one["candidate"]["schedule"]["ordering"]["interleave"] for one in (base, spiral, backwards)]
    assert [merge["kind"] for merge in sent] == ["producer_first", "given", "given"]
    assert sent[1]["tiles"][:8] == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 2],
        [0, 0, 3],
        [0, 1, 3],
        [0, 2, 3],
        [0, 3, 3],
        [0, 3, 2],
    ]
    assert sorted(map(tuple, sent[1]["tiles"])) == sorted(map(tuple, tiles))
    assert spiral["interval_us"]
    assert spiral["panels"] is not None
    assert backwards["time_us"] is None
    assert "down" in backwards["reason"]
    assert "a given order of 32 tiles" in " ".join(spiral["candidate"]["words"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def mine(grids):\n    return [(0, 0)]\n", "has (0, 0) as tile 0"),
        ("def mine(grids):\n    return grids[7]\n", "fails: IndexError"),
        ("def mine(grids):\n    while True:\n        yield 0, 0, 0\n", "occurs twice: list each tile once"),
        ("def other(grids):\n    return []\n", "has no function mine"),
        ("1 +\n", "failed: SyntaxError"),
    ],
)
def test_a_function_that_makes_no_order_is_named(run: Run, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "order.py"
    path.write_text(text)
    result = run("submit", "ffn", *PAIR, "--schedule", LINE, "--order", f"{path}:mine")
    assert result.exit_code in (ExitCode.USAGE, ExitCode.REFUSED)
    assert words in " ".join(result.stderr.split())
