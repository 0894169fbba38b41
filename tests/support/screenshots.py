"""Draws the dashboard's pictures in `docs` from the H200 jobs in `tests/pages/h200`.

python -m tests.support.screenshots [NAME ...] takes half a minute; it needs chromium.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.support import real_jobs
from tests.support.serving import Server

DOCS = Path(__file__).parents[2] / "docs"
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars"
CHARTS = ("points", "shares", "lines")


def _charts(page: Page) -> None:
    """Scrolls to the charts of a job and waits until they are drawn."""
    for chart in CHARTS:
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.locator(f"#{chart}[data-drawn] canvas").wait_for()
    page.wait_for_timeout(1500)  # their entry is animated


def _timelines(page: Page) -> None:
    expect(page.locator("figure.gantt canvas.bars[data-drawn]")).to_have_count(2)


def _nothing(_: Page) -> None:
    pass


#: Name -> path, height, and what to wait for.
PICTURES: dict[str, tuple[str, int, Callable[[Page], None]]] = {
    "jobs": ("/", 600, _nothing),
    "job": (f"/ui/jobs/{real_jobs.FUSED_WINS}", 2180, _charts),
    "trial": (f"/ui/jobs/{real_jobs.CHAIN}/trials/{real_jobs.INSPECTED_TRIAL}", 1330, _timelines),
    "compare": (
        f"/ui/compare?a={real_jobs.CHAIN}/{real_jobs.INSPECTED_TRIAL}&b={real_jobs.CHAIN}/{real_jobs.WINNING_TRIAL}",
        900,
        _nothing,
    ),
    "results": ("/ui/results?target=h200", 900, _nothing),
    "explorer": (
        "/ui/explorer?rows=4&cols=4&second_cols=4&cache=6&order=bands2.hilbert&step=21",
        900,
        _nothing,
    ),
}


def draw(names: list[str]) -> None:
    """Writes the named pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        data = Path(folder) / "data"
        real_jobs.load(data)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS.split())
        with Server(data, "--gpu", "simulated:h200") as server:
            for name in names:
                path, height, wait = PICTURES[name]
                page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
                page.goto(server.url + path)
                wait(page)
                page.evaluate("scrollTo(0, 0)")
                page.screenshot(path=DOCS / f"dashboard-{name}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES])
    draw(parser.parse_args().names or list(PICTURES))
