"""The page of orders: what an ordering changes, the plot and the tables; and the committed page is up to date."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from benchmarks.orders import page as orders_page
from benchmarks.orders.page import BEGIN, END, draw, kind_of, table

SVG = "{http://www.w3.org/2000/svg}"
BASE = "row+row producer_first row-sync static 1/SM"


def made_up() -> list[dict[str, Any]]:
    """A row with orderings that differ from row-major order in one axis each, and one that differs in two."""
    orderings = {
        "column+column producer_first row-sync static 1/SM": 80.0,
        BASE: 100.0,
        "row+row producer_first part-major row-sync static 1/SM": 101.0,
        "row+row producer_first tile-sync static 1/SM": 104.0,
        "row+row producer_first row-sync ticket 1/SM": 110.0,
        "row+row bands1 row-sync static 1/SM": 125.0,
        "row+row producer_first row-sync static 4/8 1/SM": 200.0,
        "column+row bands1 row-sync static 1/SM": 300.0,
    }
    timed = [{"ordering": ordering, "us": us} for ordering, us in orderings.items()]
    return [
        {
            "pair": "llama3-8b",
            "engine": "wgmma",
            "m": 512,
            "tiling": "wgmma 1x2x3",
            "orderings": timed,
            "library_us": 99.0,
            "row_major": {**timed[1], "l2_hit_rate": 41.2, "dram_read_bytes": 7e8},
            "best": {**timed[0], "l2_hit_rate": 66.0, "dram_read_bytes": 2.5e8},
            "worst": timed[-1],
            "row_major_over_best": 1.25,
            "row_major_over_best_ci95": [1.24, 1.26],
            "row_major_over_itself": 0.998,
            "worst_over_best": 3.75,
        }
    ]


@pytest.mark.parametrize(
    ("ordering", "kind"),
    [
        (BASE, "row_major"),
        ("row+hilbert producer_first row-sync static 1/SM", "raster"),
        ("row+row bands1-lag1 row-sync static 1/SM", "merge"),
        ("row+row producer_first part-major row-sync static 1/SM", "merge"),
        ("row+row producer_first chunk4-sync static 1/SM", "signal"),
        ("row+row producer_first row-sync static 4/8 1/SM", "assignment"),
        ("row+row producer_first row-sync by slice static 1/SM less 4 SMs", "signal"),
        ("row+row producer_first tile-sync ticket 1/SM", "several"),
    ],
)
def test_an_ordering_is_coloured_by_the_axis_that_it_changes(ordering: str, kind: str) -> None:
    assert kind_of(ordering, BASE) == kind


def test_a_plot_has_a_dot_per_ordering_and_slower_is_higher() -> None:
    root = ET.fromstring(draw(made_up()))
    dots = {
        str(title.text): float(dot.get("cy", ""))
        for dot in root.iter(f"{SVG}circle")
        if (title := dot.find(f"{SVG}title")) is not None
    }
    assert len(dots) == 8
    by_ratio = sorted((float(title.rsplit(", ", 1)[1]), y) for title, y in dots.items())
    assert [y for _, y in by_ratio] == sorted((y for _, y in by_ratio), reverse=True)
    assert all(0 < y < float(root.get("viewBox", "").split()[3]) for y in dots.values())


def test_the_table_has_the_three() -> None:
    three = table(made_up())[-1]
    assert "| 99.0 | 100.0 | 80.0 | 1.250 (1.240–1.260) | 0.998 | 3.75 | 41 %, 66 %, – |" in three
    assert "| 0.70, 0.25, – | `column+column` |" in three


def test_the_committed_page_and_plot_are_what_the_results_draw(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    results = json.loads((root / "benchmarks/results/h200/orders.json").read_text())
    page = (root / "docs/orders.md").read_text()
    assert page.split(BEGIN)[1].split(END)[0].strip() == orders_page.drawn(results).strip()
    assert (root / "docs/orders.svg").read_text() == draw(results["rows"])
