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
        "/ui/explorer?rows=3&cols=3&second_cols=2&k=2&cache=4&path=0.0-0.1-0.2-b0.1",
    ]


@pytest.mark.parametrize("every_row", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_on_a_phone_nothing_is_cut_off_and_axe_finds_nothing_serious_in_both_schemes(
    page: Page, server: Server, paths: list[str], every_row: bool
) -> None:
    """In CI, axe sees the first page of each kind, and some in the dark scheme."""
    page.set_viewport_size({"width": 390, "height": 844})
    of_each_kind = {re.sub(r"(job|batch)-\w+|/\d+|\?.*", "", path): path for path in reversed(paths)}.values()
    papers = set()
    for number, path in enumerate(paths):
        page.goto(server.url + path)
        if "/jobs/" in path and page.locator("#points .plot").count():
            page.locator("#points").scroll_into_view_if_needed()
            page.locator("#points[data-drawn]").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(CLIPPED) == [], path
        schemes: dict[Literal["light", "dark"], bool] = {
            "light": every_row or path in of_each_kind,
            "dark": every_row or number % 8 == 0,
        }
        for scheme in (scheme for scheme, is_shown in schemes.items() if is_shown):
            page.emulate_media(color_scheme=scheme)
            assert serious(page, colours_alone=scheme == "dark", every_row=every_row) == [], (scheme, path)
            papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        if path in ("/", "/ui/results") or path.startswith(("/ui/batches/", "/ui/compare?")):
            are_read_without_scrolling_sideways(page, path)
    assert len(papers) == 2


def are_read_without_scrolling_sideways(page: Page, path: str) -> None:
    page.locator(".listing td:not(.number)").evaluate_all(
        "(cells) => cells.forEach((cell) => cell.append(' do not fuse two launches pdl'))"
    )
    regions = page.locator(".scroll:has(.listing), .scroll:has(.compare)").all()
    assert regions, path
    for region in regions:
        widths = region.evaluate("(region) => [region.scrollWidth, region.clientWidth]")
        assert widths[0] <= widths[1], path
    for row in page.locator(".listing tbody tr").all()[:1]:
        assert row.locator("td:visible").count() >= 4, path


# In CI, tests/service/api has what the server renders.
@pytest.mark.soak
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
