"""Jobs that ran on an H200: a page of each kind shows their measured figures, and no simulated ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.pages.conftest import serious
from tests.pages.test_every_page import CLIPPED
from tests.support import real_jobs
from tests.support.real_jobs import CHAIN, FUSED_WINS, INSPECTED_TRIAL, TWO_OPS, WINNING_TRIAL
from tests.support.serving import Server

pytestmark = pytest.mark.slow

TRIAL = f"/ui/jobs/{CHAIN}/trials/{INSPECTED_TRIAL}"
#: A page of each kind that shows jobs.
PATHS = (
    "/?target=h200",
    f"/ui/jobs/{CHAIN}",
    f"/ui/jobs/{FUSED_WINS}",
    f"/ui/jobs/{TWO_OPS}",
    TRIAL,
    f"/ui/jobs/{CHAIN}/trials/0",
    f"/ui/jobs/{FUSED_WINS}/trials/4",
    f"/ui/compare?a={CHAIN}&b={FUSED_WINS}",
    f"/ui/compare?a={CHAIN}/{INSPECTED_TRIAL}&b={CHAIN}/{WINNING_TRIAL}",
    "/ui/results?target=h200",
    "/ui/fleet",
)


@pytest.fixture(scope="module")
def real(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a GPU whose data folder has these jobs."""
    data: Path = tmp_path_factory.mktemp("real") / "data"
    real_jobs.load(data)
    with Server(data, "--gpu", "none") as server:
        yield server


# In CI, test_every_page.py shows each page to axe on a phone.
@pytest.mark.soak
@pytest.mark.parametrize("every_row", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_each_page_shows_them_on_a_phone_with_nothing_cut_off_or_simulated_or_serious_for_axe(
    page: Page, real: Server, every_row: bool
) -> None:
    """Of pages of one kind, CI shows the first to axe."""
    first_of_kind = {re.sub(r"job-\w+|/\d+", "", path): path for path in reversed(PATHS)}.values()
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    for path in PATHS:
        answer = page.goto(real.url + path)
        assert answer is not None
        assert answer.status == 200, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(CLIPPED) == [], path
        assert page.locator(".simulated").count() == 0, path
        assert not (every_row or path in first_of_kind) or serious(page, every_row=every_row) == [], path


# In CI, test_dashboard.py shows a verdict and its charts, and tests/service/api/test_pages.py its figures.
@pytest.mark.soak
def test_a_jobs_verdict_its_finals_and_its_launches_are_those_of_the_run(page: Page, real: Server) -> None:
    page.goto(f"{real.url}/ui/jobs/{FUSED_WINS}")
    expect(page.locator("#verdict .sentence")).to_have_text(
        "Fused pdl wins by 19.0 % over the library (cuBLASLt in a graph), 95 % interval 18.6 to 19.1 %; "
        "2.1 % over n launches pdl."
    )
    expect(page.locator("#verdict")).to_contain_text("Measured on NVIDIA H200, driver 580.159.04, CUDA 13.0")
    expect(page.locator("#finals tbody tr")).to_have_count(10)
    expect(page.locator("#ops")).to_contain_text("One launch computes all 4 ops")
    page.locator("#points").scroll_into_view_if_needed()
    page.locator("#points[data-drawn] canvas").wait_for()
    page.goto(f"{real.url}/ui/jobs/{CHAIN}")
    expect(page.locator("#ops")).to_contain_text("4 launches compute 4 ops")
    expect(page.locator("#inspections")).to_contain_text("dram__bytes_read.sum")


# In CI, test_trial.py draws a trace, and tests/service/api/test_inspections.py has counters.
@pytest.mark.soak
def test_a_trials_trace_and_its_counters_are_those_of_the_card(page: Page, real: Server) -> None:
    page.goto(real.url + TRIAL)
    expect(page.locator("figure.gantt canvas.bars[data-drawn]")).to_have_count(2)
    expect(page.locator("figure[data-of=measured] figcaption")).to_have_text(
        "Traced on the card 108.49 µs, 768 tasks on 128 SMs"
    )
    counters = page.locator("#counters tbody tr").filter(has_text="dram__bytes_read.sum")
    expect(counters).to_contain_text("MB")
    box, panel = counters.locator("td.number").bounding_box(), page.locator("#counters").bounding_box()
    assert box is not None
    assert panel is not None
    assert box["x"] + box["width"] <= panel["x"] + panel["width"], "the values are not visible"


# In CI, tests/service/api/test_trial.py names the axes in which two trials differ.
@pytest.mark.soak
def test_two_trials_differ_where_their_schedules_do_and_results_name_the_card(page: Page, real: Server) -> None:
    page.goto(f"{real.url}/ui/compare?a={CHAIN}/{INSPECTED_TRIAL}&b={CHAIN}/{WINNING_TRIAL}")
    kinds = page.get_by_role("row", name="plan kind").locator("td.differs")
    expect(kinds).to_have_text(["fused pdl", "n launches pdl ≠"])
    page.goto(f"{real.url}/ui/results?target=h200")
    expect(page.locator("#from-jobs tbody tr")).to_have_count(3)
    expect(page.locator("#from-jobs tbody tr").first).to_contain_text("NVIDIA H200")
    shipped = page.locator("#shipped tbody tr").filter(has_text="decode-plain/llama3-8b/m16")
    expect(shipped.locator("td").nth(4)).to_have_text("76.5 µs")
    expect(shipped).to_contain_text("two launches pdl, 1.12x")


def test_the_chains_kernel_is_downloaded_as_it_was_made(real: Server) -> None:
    best = httpx.get(f"{real.url}/jobs/{CHAIN}/best").raise_for_status().json()
    kernel = httpx.get(real.url + best["artifact"]["href"]).raise_for_status().content
    assert hashlib.sha256(kernel).hexdigest() == best["artifact"]["digest"]
