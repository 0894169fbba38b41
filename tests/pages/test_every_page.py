"""Rules for every page: no console errors, no serious axe finding, nothing cut off on a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from tests.pages.conftest import serious
from tests.support.serving import Server

pytestmark = pytest.mark.slow

#: Elements that extend beyond the window and cannot be scrolled into view.
CLIPPED = """() => [...document.querySelectorAll('body *')].filter((element) => {
  const box = element.getBoundingClientRect();
  if (box.width === 0 || box.right <= innerWidth + 1 || element.closest('.skip')) return false;
  for (let around = element; around; around = around.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(around).overflowX)) return false;
  return true;
}).map((element) => element.outerHTML.slice(0, 120))"""


@pytest.fixture
def paths(job_id: str, batch_id: str, chain_id: str, ended_jobs: dict[str, str]) -> list[str]:
    """A page of each kind, and of each final state of a job."""
    cancelled, failed = ended_jobs["cancelled"], ended_jobs["failed"]
    return [
        "/",
        f"/ui/jobs/{job_id}",
        f"/ui/jobs/{cancelled}",
        f"/ui/jobs/{failed}",
        f"/ui/jobs/{chain_id}",
        f"/ui/jobs/{chain_id}/trials/1",
        f"/ui/studies/{job_id}",
        f"/ui/batches/{batch_id}",
        "/ui/submit?model=llama3-8b&m=1,16",
        "/ui/submit?m=none",
        f"/ui/compare?a={job_id}&b={cancelled}/0",
        "/ui/compare",
        "/ui/results",
        "/ui/fleet",
        "/ui/access",
        "/ui/audit",
    ]


def test_nothing_is_cut_off_on_a_phone(page: Page, server: Server, paths: list[str]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in paths:
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(CLIPPED) == [], path


def test_two_side_by_side_are_read_on_a_phone_without_scrolling_sideways(
    page: Page, server: Server, job_id: str, ended_jobs: dict[str, str]
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{server.url}/ui/compare?a={job_id}/1&b={job_id}/2")
    widths = page.locator(".scroll:has(.compare)").evaluate("(region) => [region.scrollWidth, region.clientWidth]")
    assert widths[0] <= widths[1]


def test_a_listing_is_read_on_a_phone_without_scrolling_sideways(page: Page, server: Server, batch_id: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/", "/ui/batches", f"/ui/batches/{batch_id}", "/ui/results"):
        page.goto(server.url + path)
        page.locator(".listing td:not(.number)").evaluate_all(
            "(cells) => cells.forEach((cell) => cell.append(' do not fuse two launches pdl'))"
        )
        for region in page.locator(".scroll:has(.listing)").all():
            widths = region.evaluate("(region) => [region.scrollWidth, region.clientWidth]")
            assert widths[0] <= widths[1], path
        assert page.locator(".listing tbody tr").first.locator("td:visible").count() >= 4, path


@pytest.mark.parametrize("every_row", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    browser: Browser, server: Server, paths: list[str], scheme: str, every_row: bool
) -> None:
    page = browser.new_page(color_scheme=scheme)
    for path in paths if scheme == "light" or every_row else paths[::4]:
        page.goto(server.url + path)
        if "/jobs/" in path and page.locator("#points .plot").count():
            page.locator("#points").scroll_into_view_if_needed()
            page.locator("#points[data-drawn]").wait_for()
        assert serious(page, colours_alone=scheme == "dark", every_row=every_row) == [], (scheme, path)
    page.close()


def test_the_charts_of_a_job_are_drawn_without_a_fault(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/jobs/{job_id}")
    for chart in ("points", "shares", "lines", "forecasts", "stages"):
        element = page.locator(f"#{chart}")
        element.scroll_into_view_if_needed()
        page.locator(f"#{chart}[data-drawn] canvas").wait_for()


def test_each_page_shows_its_text_without_javascript(
    browser: Browser, server: Server, paths: list[str], chain_id: str, batch_id: str
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in paths:
        answer = page.goto(server.url + path)
        assert answer is not None
        assert answer.status == 200, path
        assert page.locator("h1").inner_text()
    page.goto(server.url + paths[1])
    assert page.locator("#points svg polyline.best").is_visible()
    for path, picture in ((f"/ui/jobs/{chain_id}", "#ops .chain-plot"), (f"/ui/batches/{batch_id}", ".ladder-plot")):
        page.goto(server.url + path)
        assert page.locator(picture).is_visible(), path
    context.close()
