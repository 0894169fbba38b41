"""The dashboard as a user sees it."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.serving import SMALL_PAIR, Server, body
from tuner.client import Client

pytestmark = pytest.mark.slow


def test_the_front_page_leads_to_a_job_with_verdict_charts_words_and_counts(
    page: Page, server: Server, job_id: str
) -> None:
    page.goto(server.url)
    expect(page).to_have_title("Jobs · tuner")
    row = page.locator("tbody tr", has_text=job_id)
    expect(row).to_contain_text("simulated")
    expect(row).to_contain_text("succeeded")
    expect(row.locator(".verdict")).to_be_visible()
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("ffn fp16 M=16 256 → 512 → 256")
    expect(page.locator("#verdict h2")).to_contain_text("Verdict: ")
    expect(page.locator("#finals tr.winner")).to_have_count(1)
    for chart in ("points", "shares", "lines", "forecasts", "stages"):
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.locator(f"#{chart}[data-drawn] canvas").wait_for()
    expect(page.locator("#points")).to_have_attribute("data-drawn", re.compile("[0-9]+"))
    box = page.locator("#points canvas").bounding_box()
    assert box is not None
    assert box["width"] > 400
    expect(page.locator(".bars li.winner")).to_have_count(1)
    expect(page.locator("#fastest li").first).to_be_visible()
    expect(page.locator("#counts tr")).not_to_have_count(0)
    expect(page.get_by_text("simulated", exact=True)).to_have_count(1)


# In CI, test_actions.py follows an open job, and tests/service/api/test_inspections.py has the file of a trace.
@pytest.mark.soak
def test_an_open_job_is_followed_without_a_reload_until_its_inspections_and_a_trace_is_downloaded(
    page: Page, server: Server
) -> None:
    with Client(server.url) as client:
        job = client.submit(body(pair={**SMALL_PAIR, "m": 32}, budget={"trials": 16}))
        page.goto(f"{server.url}/ui/jobs/{job['id']}")
        page.evaluate("window.loadedOnce = true")
        # A choice that was not submitted survives the refreshes.
        page.locator("select[name=sort]").select_option("speedup")
        expect(page.locator(".facts .state")).to_have_text("succeeded")
        expect(page.locator("#verdict")).to_be_visible()
        expect(page.locator("#trials tbody tr")).to_have_count(16)
        inspections = page.locator("#inspections")
        expect(inspections.locator("tbody tr", has_text="tail_share")).to_have_count(1)
        expect(inspections.locator("tbody tr", has_text="dram__bytes_read.sum")).to_have_count(1)
        expect(inspections.get_by_text("More is being collected.")).to_have_count(0)
        expect(page.locator("select[name=sort]")).to_have_value("speedup")
        assert page.evaluate("window.loadedOnce") is True
        with page.expect_download() as download:
            inspections.get_by_role("link", name="Download the trace of fused", exact=True).click()
    assert download.value.suggested_filename.startswith(f"{job['id']}-trial-")
    assert json.loads(download.value.path().read_text())["otherData"]["simulated"] is True


# In CI, tests/service/api/test_pages.py chooses rows by filters.
@pytest.mark.soak
def test_filters_and_sorting_change_the_table_and_the_address(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/jobs/{job_id}")
    rows = page.locator("#trials tbody tr")
    assert rows.count() == 60
    page.locator("select[name=outcome]").select_option("measured")
    page.locator("select[name=plan_kind]").select_option("fused")
    page.locator("select[name=sort]").select_option("time")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**outcome=measured&plan_kind=fused&sort=time**")
    assert "reason" not in page.url
    times = [float(text.split()[0]) for text in page.locator("#trials tbody td:nth-child(4)").all_inner_texts()]
    assert times == sorted(times)
    assert set(page.locator("#trials tbody td:nth-child(2)").all_inner_texts()) == {"fused"}
    expect(page.locator("select[name=plan_kind]")).to_have_value("fused")


# In CI, tests/service/api/test_pages.py has filters and pages of trials.
@pytest.mark.soak
def test_a_count_leads_to_its_trials_and_a_long_table_goes_on(
    page: Page, server: Server, ended_jobs: dict[str, str]
) -> None:
    page.goto(f"{server.url}/ui/jobs/{ended_jobs['cancelled']}")
    expect(page.locator("#trials tbody tr")).to_have_count(100)
    page.get_by_role("link", name="Next trials").click()
    expect(page.locator("#trials tbody tr").first).to_contain_text("100")
    expect(page.locator("#trials tbody tr")).to_have_count(20)
    link = page.locator("#counts tr", has_text="failed").first
    count = int(link.locator(".number").inner_text())
    link.get_by_role("link").click()
    expect(page.locator("#trials tbody tr.failed")).to_have_count(count)


# In CI, tests/service/api/test_pages.py has both forms of each page.
@pytest.mark.soak
def test_the_json_form_is_one_click_away(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/jobs/{job_id}?outcome=failed")
    page.get_by_role("link", name="this page as JSON").click()
    as_json = json.loads(page.locator("body").inner_text())
    assert as_json["job"]["id"] == job_id
    assert {trial["outcome"]["kind"] for trial in as_json["trials"]["items"]} <= {"failed"}


# In CI, tests/service/api/test_bad_input.py has such answers.
@pytest.mark.soak
def test_a_page_that_does_not_exist_says_so(window: BrowserContext, server: Server) -> None:
    page = window.new_page()
    page.goto(f"{server.url}/ui/jobs/job-000000000000")
    expect(page.get_by_role("heading", level=1)).to_have_text("404 Not Found")
    page.get_by_role("link", name="All jobs").click()
    expect(page).to_have_title("Jobs · tuner")
    page.close()
