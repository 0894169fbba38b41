"""Rules for every page: no console errors, no serious axe finding, nothing cut off on a phone."""

from __future__ import annotations

import re
from typing import Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.pages.conftest import serious
from tests.support.serving import Server

pytestmark = pytest.mark.slow

#: Pages that show jobs: of jobs that ran on a card, axe sees them in test_real_jobs.py.
OF_JOBS = ("/ui/jobs/", "/ui/compare?", "/ui/results", "/ui/fleet")
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
def test_axe_finds_nothing_serious_in_both_schemes(
    browser: Browser, server: Server, paths: list[str], every_row: bool
) -> None:
    """Pages that test_real_jobs.py shows to axe in the dark scheme are left out of it here, except for one of each."""
    papers, others = set(), [path for path in paths if not path.startswith(OF_JOBS)]
    schemes: dict[Literal["light", "dark"], list[str]] = {"light": [paths[2], *others], "dark": paths[::4]}
    for scheme, some in schemes.items():
        page = browser.new_page(color_scheme=scheme)
        for path in paths if every_row else some:
            page.goto(server.url + path)
            if "/jobs/" in path and page.locator("#points .plot").count():
                page.locator("#points").scroll_into_view_if_needed()
                page.locator("#points[data-drawn]").wait_for()
            assert serious(page, colours_alone=scheme == "dark", every_row=every_row) == [], (scheme, path)
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert len(papers) == 2


def test_the_charts_of_a_job_are_drawn_without_a_fault(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/jobs/{job_id}")
    for chart in ("points", "shares", "lines", "forecasts", "stages"):
        element = page.locator(f"#{chart}")
        element.scroll_into_view_if_needed()
        page.locator(f"#{chart}[data-drawn] canvas").wait_for()


def test_each_page_shows_its_text_without_javascript(
    browser: Browser, server: Server, paths: list[str], job_id: str, chain_id: str, batch_id: str
) -> None:
    for path in paths:
        answer = httpx.get(server.url + path, headers={"accept": "text/html"}, follow_redirects=True)
        assert answer.status_code == 200, path
        assert re.search(r"<h1[^>]*>\s*[^<\s]", answer.text), path
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path, picture in (
        (f"/ui/jobs/{job_id}", "#points svg polyline.best"),
        (f"/ui/jobs/{chain_id}", "#ops .chain-plot"),
        (f"/ui/batches/{batch_id}", ".ladder-plot"),
    ):
        page.goto(server.url + path)
        assert page.locator("h1").inner_text()
        assert page.locator(picture).is_visible(), path
    context.close()
