"""The dashboard's pages in a headless Chromium: the time of a large job's page, and faults of pages.

python -m benchmarks.cpu.pages [--trials 10000] [--loads 5] [--out benchmarks/results/cpu/pages.json]
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, Literal

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, check_row, merge_report
from benchmarks.cpu.best import serving
from benchmarks.cpu.large_job import fill
from tests.support.many_jobs import many_jobs
from tests.support.serving import listening
from tuner.store import Store

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
FIRST_PAINT_BAR_S = 1.0
INTERACTIVE_BAR_S = 2.0
#: Widths of windows, pixels.
WIDTHS = [1280, 390]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

#: Seconds from the navigation until the curve is drawn and the page's thread is idle.
_INTERACTIVE = """() => new Promise((resolve) => {
  const element = document.getElementById('points');
  const done = () => requestIdleCallback(() => resolve(performance.now() / 1000));
  if (element.dataset.drawn) return done();
  new MutationObserver((_, observer) => {
    if (!element.dataset.drawn) return;
    observer.disconnect();
    done();
  }).observe(element, { attributes: true });
})"""
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
_HAS_PAINTED = "() => performance.getEntriesByName('first-contentful-paint').length > 0"
#: Elements outside the window that cannot be scrolled to.
_CLIPPED = """() => [...document.querySelectorAll('body *')].filter((element) => {
  const box = element.getBoundingClientRect();
  if (box.width === 0 || box.right <= innerWidth + 1 || element.closest('.skip')) return false;
  for (let around = element; around; around = around.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(around).overflowX)) return false;
  return true;
}).length"""


def _first_paint_s(page: Page) -> float:
    """Seconds from the navigation; on a busy machine the entry appears only a moment after the page has loaded."""
    page.wait_for_function(_HAS_PAINTED)
    return float(page.evaluate(_PAINTED))


def new_pages(browser: Browser, count: int) -> Iterator[Page]:
    """Yields windows without cached files in sequence."""
    for _ in range(count):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        yield context.new_page()
        context.close()


def watch(page: Page, faults: list[str]) -> None:
    """Collects what the page logs as an error or throws."""
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)


def load(browser: Browser, address: str, num_loads: int, raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a page's load times, each in a window without cached files; the result is the median."""
    painted, interactive = [], []
    for page in new_pages(browser, num_loads):
        page.goto(address, wait_until="commit")
        page.wait_for_selector("#points", state="attached")
        interactive.append(page.evaluate(_INTERACTIVE))
        painted.append(_first_paint_s(page))
    what = f"of the page of a job with {raw['trials']} trials, seconds"
    slowest = {"slowest_s": round(max(painted), 3)}, {"slowest_s": round(max(interactive), 3)}
    return [
        check_row(f"first paint {what}", statistics.median(painted), FIRST_PAINT_BAR_S, **raw, **slowest[0]),
        check_row(f"interactive, {what}", statistics.median(interactive), INTERACTIVE_BAR_S, **raw, **slowest[1]),
    ]


def load_jobs(browser: Browser, url: str, num_loads: int, raw: dict[str, Any]) -> list[dict[str, Any]]:
    """A row of the front page's load time, with 500 jobs in 20 batches by 10 owners."""
    painted = []
    for page in new_pages(browser, num_loads):
        page.goto(url, wait_until="load")
        painted.append(_first_paint_s(page))
    what = "first paint of the front page of 500 jobs in 20 batches by 10 owners, seconds"
    return [check_row(what, statistics.median(painted), FIRST_PAINT_BAR_S, **raw, slowest_s=round(max(painted), 3))]


def many_pages(url: str) -> list[str]:
    """The pages of many jobs: the listings, and a batch."""
    batch = httpx.get(f"{url}/batches", params={"limit": 1}).json()["items"][0]["id"]
    return [url + path for path in ("/", f"/?batch={batch}", "/?sort=newest", "/ui/batches", f"/ui/batches/{batch}")]


def faults(browser: Browser, addresses: list[str]) -> list[dict[str, Any]]:
    """Rows of faults on pages, in both colour schemes, on a laptop and on a phone."""
    messages, serious, clipped = list[str](), list[str](), 0
    for scheme, width in product(SCHEMES, WIDTHS):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page = context.new_page()
        watch(page, messages)
        for address in addresses:
            page.goto(address)
            if page.locator("#points .plot").count():
                page.locator("#points").scroll_into_view_if_needed()
                page.locator("#points[data-drawn]").wait_for(timeout=60_000)
            clipped += page.evaluate(_CLIPPED)
            violations = Axe().run(page).response["violations"]
            serious += [f"{address}: {one['id']}" for one in violations if one["impact"] in ("serious", "critical")]
        context.close()
    raw = {"pages": len(addresses), "schemes": 2, "widths": WIDTHS}
    return [
        check_row("errors in the console", len(messages), 0, **raw, found=messages[:5]),
        check_row("serious or critical findings of axe-core", len(serious), 0, **raw, found=serious[:5]),
        check_row("elements cut off", clipped, 0, **raw),
    ]


def main() -> None:
    """Measures and writes the results file."""
    arguments = parser_of(__doc__, "loads", trials=10_000, out=Path("benchmarks/results/cpu/pages.json")).parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        job_id = fill(Path(folder) / "data", arguments.trials)
        path = f"/ui/jobs/{job_id}"
        paths = ["/", path, "/ui/submit?m=1,16", f"/ui/compare?a={job_id}&b={job_id}/1", "/ui/results", "/ui/fleet"]
        paths += ["/ui/batches", "/ui/access", "/ui/audit", f"{path}/trials/1", f"/ui/studies/{job_id}"]
        paths += ["/ui/explorer?rows=3&cols=3&second_cols=2", "/ui/explorer?rows=3&cols=3&order=exact"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS.split())
        service = many_jobs(Store.open(Path(folder) / "many"))
        with serving(Path(folder) / "data") as (url, _), closing(service), listening(service) as many:
            raw = {"trials": arguments.trials, "loads": arguments.loads, "load_average": os.getloadavg()[0]}
            rows = load(browser, url + path, arguments.loads, raw)
            jobs_raw = {"loads": arguments.loads, "load_average": os.getloadavg()[0]}
            rows += load_jobs(browser, many, arguments.loads, jobs_raw)
            rows += faults(browser, [*(url + one for one in paths), *many_pages(many)])
        browser.close()
    merge_report(arguments.out, rows, NO_GPU)


if __name__ == "__main__":
    main()
