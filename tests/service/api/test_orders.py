"""`GET /orders` and the order explorer agree with `tuner orders`, and refuse what they cannot compute."""

from __future__ import annotations

import random
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from tests.service.api.conftest import Api
from tuner.cli import main
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import fused
from tuner.schedule_files.reading import read_schedule

NUM_CASES = 200


def cases() -> list[dict[str, int | str]]:
    """Grids, caches and policies whose optimum is found quickly."""
    rng = random.Random(22)
    drawn = []
    for _ in range(NUM_CASES):
        rows, cols = rng.randint(1, 3), rng.randint(1, 4)
        k = rng.randint(1, 2) if rows * cols <= 6 else 1
        policy = rng.choice(("lru", "fifo"))
        drawn.append({"rows": rows, "cols": cols, "k": k, "cache": rng.randint(2, 8), "policy": policy})
    return drawn


def printed(case: dict[str, int | str]) -> tuple[int, dict[str, int]]:
    """The minimum and each raster's traffic, as the command line prints them."""
    arguments = ["orders", case["rows"], case["cols"], "--cache", case["cache"], "--k", case["k"]]
    result = CliRunner().invoke(main, [*map(str, arguments), "--policy", str(case["policy"])])
    assert result.exit_code == 0, result.stderr
    least = re.search(r"at least (\d+) (?:panels|pieces) from memory", result.stdout)
    assert least is not None
    rasters = re.findall(r"^  (\S+) +(\d+) (?:panels|pieces)", result.stdout, re.MULTILINE)
    return int(least[1]), {name: int(count) for name, count in rasters}


# In CI, other tests have the numbers of the page and of tuner orders.
@pytest.mark.soak
def test_the_numbers_are_those_of_the_command_line(idle_api: Api) -> None:
    for case in cases():
        least, rasters = printed(case)
        query = "&".join(f"{name}={value}" for name, value in case.items())
        answer = idle_api.get(f"/orders?{query}&order=exact")
        assert answer["exact"]["total"] == answer["total"] == answer["steps"][-1]["total"] == least, case
        assert {one["name"]: one["total"] for one in answer["standard"]} == rasters, case
        name = random.Random(str(case)).choice(sorted(rasters))
        assert idle_api.get(f"/orders?{query}&order={name}")["total"] == rasters[name], case


def test_a_drawn_path_says_what_the_cache_holds_and_what_may_come_next(idle_api: Api) -> None:
    answer = idle_api.get("/orders?rows=2&cols=2&cache=2&path=0.0-0.1")
    assert [step["loads"] for step in answer["steps"]] == [["A0", "W0"], ["W1"]]
    assert answer["steps"][1] | {"reads": []} == {
        "tile": "0.1", "reads": [], "loads": ["W1"], "evicted": ["W0"], "held": ["A0", "W1"], "total": 3,
    }  # fmt: skip
    assert answer["open"] == ["1.0", "1.1"]
    assert not answer["is_whole"]


def test_a_second_product_waits_for_the_first_ones_row(idle_api: Api) -> None:
    answer = idle_api.get("/orders?rows=2&cols=2&second_cols=1&cache=4&path=0.0")
    assert answer["waiting"] == {"b0.0": ["0.1"], "b1.0": ["1.0", "1.1"]}
    assert answer["exact"]["total"] is None
    assert "pair" in answer["exact"]["reason"]
    whole = idle_api.get("/orders?rows=2&cols=2&second_cols=1&cache=4&path=0.0-0.1-b0.0")
    assert whole["steps"][2]["reads"] == ["H0.0", "V0.0", "H0.1", "V0.1"]


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("rows=99", "rows", "less than or equal to 8"),
        ("cache=1", "cache", "greater than or equal to 2"),
        ("policy=random", "policy", "lru"),
        ("order=zigzag", "order", "use one of drawn, exact, row, column"),
        ("order=row&path=0.0", "path", "has its own path"),
        ("path=zero", "path", "'zero' is not a tile"),
        ("path=0.0-7.7", "path", "step 2, tile 7.7, is outside the grid"),
        ("path=0.0-0.0", "path", "step 2, tile 0.0, was already computed"),
        ("second_cols=2&path=b0.0", "path", "do 0.0, 0.1, 0.2, 0.3 before"),
        ("rows=5&order=exact", "grid", "the limit is 4 x 4"),
    ],
)
def test_what_is_wrong_is_named(idle_api: Api, query: str, field: str, words: str) -> None:
    answer = idle_api.http.get(f"/orders?{query}")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"].rpartition(".")[2] == field
    assert words in f"{error['problem']}; {error['remedy']}"


def test_the_page_and_its_json_form_show_the_same_numbers(idle_api: Api) -> None:
    query = "rows=3&cols=4&cache=4&order=hilbert&step=5"
    page = idle_api.http.get(f"/ui/explorer?{query}", headers={"accept": "text/html"}).text
    twin = idle_api.get(f"/ui/explorer.json?{query}")
    shown = twin["orders"]["steps"][twin["step"] - 1]
    found = re.search(r'id="total">(\d+)<', page)
    assert found is not None
    assert int(found[1]) == shown["total"]
    assert re.findall(r'class="chip(?: loaded)?">(\w+)<', page)[: len(shown["held"])] == shown["held"]
    assert idle_api.http.get(f"/ui/explorer?{query[:-1]}99", headers={"accept": "text/html"}).status_code == 422


def test_a_drawn_path_is_a_schedule_file_that_is_proven(idle_api: Api, tmp_path: Path) -> None:
    drawn = {"rows": 2, "cols": 2, "second_cols": 1, "cache": 4, "path": "0.1-0.0-b0.0-1.0-1.1-b1.0"} | {
        "target": "simulated:h200"
    }
    asked = f"/ui/explorer/schedule?{urlencode(drawn)}"
    path = tmp_path / "order.json"
    path.write_bytes(idle_api.http.get(asked).content)
    workload, gpu, schedule = read_schedule(path)
    assert workload.describe() == "ffn fp16 M=128 64 -> 128 -> 64"
    assert plans_for(workload, gpu, fused(schedule))
    table = schedule.to_json()["ordering"]["interleave"]["tiles"]
    assert table == ((0, 0, 1), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 0))


def test_a_path_that_lacks_tiles_is_no_schedule(idle_api: Api) -> None:
    answer = idle_api.http.get(
        "/ui/explorer/schedule?rows=2&cols=2&path=0.0-0.1&target=h200", headers={"accept": "application/json"}
    )
    assert (answer.status_code, "has 2 of 4 tiles" in answer.text) == (422, True)
