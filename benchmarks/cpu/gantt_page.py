"""How fast a trial's page draws a trace of 20,480 tasks in a headless Chromium, and how fast it zooms.

python -m benchmarks.cpu.gantt_page [--loads 5] [--out benchmarks/results/cpu/pages.json]
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.common.program import parser_of
from benchmarks.common.report import NO_GPU, check_row, merge_report
from benchmarks.cpu.best import percentile, serving
from benchmarks.cpu.pages import FLAGS, new_pages, watch

DRAWN_BAR_S, ZOOM_BAR_MS = 2.0, 33.0
#: Seconds from the navigation until the trace is on the canvas.
_DRAWN = """() => new Promise((resolve) => {
  const look = () => {
    const canvas = document.querySelector("figure[data-of=measured] canvas.bars");
    if (canvas?.dataset.drawn) resolve(performance.now() / 1000);
    else requestAnimationFrame(look);
  };
  look();
})"""
#: Milliseconds from a key press to the frame that shows its effect: until both charts are drawn.
_ZOOMS = """async (keys) => {
  const canvas = document.querySelector("figure[data-of=measured] canvas.bars");
  const frame = () => new Promise((resolve) => { requestAnimationFrame(() => { setTimeout(resolve, 0); }); });
  const took = [];
  for (const key of keys) {
    await frame();
    performance.clearMeasures("gantt-draw");
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    await frame();
    took.push(performance.getEntriesByName("gantt-draw").reduce((sum, one) => sum + one.duration, 0));
  }
  return took;
}"""
#: Zooms in to a hundredth of the run, moves, and zooms out.
_KEYS = [*"wwwwwwwwwwwwd", *"daadda", *"ssssssssssss"] * 3


def measure(browser: Browser, address: str, num_loads: int, raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for the time until the picture appears, in windows without cached files, and for each zoom step."""
    drawn, faults = [], list[str]()
    for page in new_pages(browser, num_loads):
        watch(page, faults)
        page.goto(address, wait_until="commit")
        page.wait_for_selector("#gantt", state="attached")
        drawn.append(page.evaluate(_DRAWN))
    for page in new_pages(browser, 1):
        watch(page, faults)
        page.goto(address)
        page.wait_for_selector("figure[data-of=forecast] canvas.bars[data-drawn]", timeout=120_000)
        zooms = page.evaluate(_ZOOMS, _KEYS)
    raw.update(drawn_s=drawn, zoom_ms=zooms)
    slow = percentile(zooms, 0.95)
    return [
        check_row("seconds until a trace of 20,480 tasks is drawn", statistics.median(drawn), DRAWN_BAR_S),
        check_row("milliseconds of a zoom step of trace and forecast at 1280 x 800, p95", slow, ZOOM_BAR_MS),
        check_row("errors in the console of a trial's page", float(len(faults)), 0.0),
    ]


def main() -> None:
    """Seeds a job with a trace, serves it, and measures its trial's page."""
    from tests.support.traced import LARGE, store_traced_job

    arguments = parser_of(__doc__, "loads", out=Path("benchmarks/results/cpu/pages.json")).parse_args()
    raw: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        job_id = store_traced_job(data, LARGE)
        with serving(data) as (url, _), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS.split())
            rows = measure(browser, f"{url}/ui/jobs/{job_id}/trials/0", arguments.loads, raw)
            browser.close()
    merge_report(arguments.out, rows, NO_GPU)


if __name__ == "__main__":
    main()
