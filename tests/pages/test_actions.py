"""User actions on the pages, by keyboard only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.serving import SMALL_PAIR, Server, listening, running_service
from tests.support.waiting import wait_until
from tuner.client import Client

pytestmark = pytest.mark.slow

#: A search that does not end by itself during a test.
LONG = {"pair": {**SMALL_PAIR, "m": 96}, "budget": {"trials": 5000, "seconds": 60}}


@pytest.fixture(scope="module")
def slow(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a card so slow that its searches take little processor time."""
    with (
        running_service(tmp_path_factory.mktemp("slow") / "data", latency_s=0.3) as service,
        listening(service) as url,
    ):
        yield url


def press(page: Page, target: Locator) -> None:
    """Moves the focus to `target` with the Tab key and presses Enter."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if target.evaluate("(element) => element === document.activeElement"):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the Tab key does not reach {target}")


def test_a_job_is_submitted_cancelled_and_tried_again_by_keyboard(page: Page, slow: str) -> None:
    page.goto(slow)
    press(page, page.get_by_role("link", name="New job"))
    expect(page).to_have_title("New job · tuner")
    page.get_by_label("Rows (m), or several").fill("72")
    for name, size in (("d_in", "256"), ("d_hidden", "512"), ("d_out", "256")):
        page.get_by_label(name, exact=True).fill(size)
    page.get_by_label("Trials").fill("5000")
    page.get_by_label("Seconds of search").fill("60")
    expect(page.locator("#live-commands")).to_contain_text("submit ffn --m 72 --d-in 256 --d-hidden 512 --d-out 256")
    expect(page.locator("#live-commands")).to_contain_text('"m": 72')
    press(page, page.get_by_role("button", name="Submit"))
    expect(page.get_by_role("heading", level=1)).to_have_text("ffn fp16 M=72 256 → 512 → 256")
    page.on("dialog", lambda dialog: dialog.accept())
    press(page, page.get_by_role("button", name="Cancel"))
    expect(page.locator(".facts .state")).to_have_text("cancelled")
    before = page.url
    press(page, page.get_by_role("button", name="Try again"))
    page.wait_for_url(lambda url: url != before)
    expect(page.locator(".facts .state")).not_to_have_text("cancelled")
    with Client(slow) as client:
        client.cancel(page.url.rsplit("/", 1)[1])


# In CI, the first test submits by the form, and tests/service/api has presets.
@pytest.mark.soak
def test_a_decoder_layer_is_submitted_by_its_preset(page: Page, slow: str) -> None:
    page.goto(f"{slow}/ui/submit")
    page.get_by_label("What").select_option("decoder layer")
    expect(page.locator("#live-problem")).to_contain_text("model")
    expect(page.get_by_label("Rows (m), or several")).to_be_hidden()
    page.get_by_label("Model").select_option("llama3-8b")
    page.get_by_label("Longest context").fill("256")
    page.get_by_label("Trials").fill("8")
    expect(page.locator("#live-problem")).to_be_empty()
    expect(page.locator("#live-commands")).to_contain_text("submit decoder-layer --sequences 1 --max-length 256")
    expect(page.locator("#live-commands")).to_contain_text("--model llama3-8b")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/ui/jobs/job-*")
    expect(page.get_by_role("heading", level=1)).to_contain_text("attention fp16 1 x 256 tokens")
    with Client(slow) as client:
        job = client.cancel(page.url.rsplit("/", 1)[1])
    assert [op["name"] for op in job["pair"]["ops"]] == ["attention", "o_proj", "gate_up", "down", "qkv"]
    assert job["pair"]["ops"][4]["rotary"]["max_length"] == 256


# In CI, tests/service/api/test_terms.py pauses and resumes a job, and the first test presses buttons.
@pytest.mark.soak
def test_a_job_waits_and_goes_on(page: Page, slow: str) -> None:
    with Client(slow) as client:
        job = client.submit(LONG)
        page.goto(f"{slow}/ui/jobs/{job['id']}")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        assert client.job(job["id"])["is_paused"] is True
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        client.cancel(job["id"])


# In CI, tests/service/api/test_bad_input.py names wrong fields, and the first test sees what the form says.
@pytest.mark.soak
def test_a_wrong_field_is_named_and_nothing_is_submitted(page: Page, server: Server) -> None:
    with Client(server.url) as client:
        page.goto(f"{server.url}/ui/submit?m=16&d_in=many")
        before = len(list(client.jobs()))
        expect(page.locator("#live-problem")).to_contain_text("d_in")
        expect(page.locator("#live-commands")).to_contain_text("None while a field is invalid")
        assert len(list(client.jobs())) == before


# In CI, tests/service/api has a batch's page and picture, and test_every_page.py shows it.
@pytest.mark.soak
def test_several_rows_are_a_batch_whose_gain_is_drawn_when_it_is_known(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/ui/submit?m=3,5&d_in=128&d_hidden=384&d_out=128&trials=4&labels=ladder")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/ui/batches/batch-*")
    expect(page.locator("#jobs tbody tr")).to_have_count(2)
    picture = page.get_by_role("img", name="Gain over the library by m")
    expect(picture.locator("circle")).to_have_count(2)  # the page polls until the batch has ended
    page.goto(f"{server.url}/?n=384&k=128")
    expect(page.locator("tbody tr")).to_have_count(1)  # the batch, and its two jobs
    page.goto(f"{server.url}/?n=384&k=128&sort=newest")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody .tag").first).to_have_text("ladder")


# In CI, test_dashboard.py sees each chart drawn.
@pytest.mark.soak
def test_the_curve_is_zoomed_by_the_keyboard_and_drawn_over_seconds(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/jobs/{job_id}")
    page.locator("#points").scroll_into_view_if_needed()  # a chart is drawn when it comes into view
    curve = page.locator("#points[data-drawn]")
    curve.wait_for()
    options = "echarts.getInstanceByDom(document.getElementById('points')).getOption()"
    zoom = f"{options}.dataZoom[0]"
    curve.focus()
    page.keyboard.press("+")
    wait_until(lambda: page.evaluate(f"{zoom}.end - {zoom}.start") == 50)
    page.keyboard.press("0")
    wait_until(lambda: page.evaluate(f"{zoom}.end - {zoom}.start") == 100)
    page.get_by_label("over seconds").check()
    wait_until(lambda: page.evaluate(f"{options}.xAxis[0].name") == "seconds")


# In CI, tests/service/api/test_pages.py compares two jobs.
@pytest.mark.soak
def test_two_jobs_are_compared_and_equal_rows_hidden(
    page: Page, server: Server, job_id: str, ended_jobs: dict[str, str]
) -> None:
    page.goto(f"{server.url}/ui/compare?a={job_id}&b={ended_jobs['cancelled']}")
    pair = page.locator("tbody tr").filter(has=page.get_by_role("rowheader", name="pair", exact=True))
    expect(pair.locator("td.differs")).to_have_count(2)
    rows, same = page.locator("tbody tr:visible").count(), page.locator("tr.same").count()
    assert same > 0
    page.get_by_label("only differences").check()
    expect(page.locator("tbody tr:visible")).to_have_count(rows - same)


# In CI, test_every_page.py shows the page of results.
@pytest.mark.soak
def test_results_are_found_by_words(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/results")
    expect(page.locator("#from-jobs tbody tr", has_text=job_id)).to_be_visible()
    assert page.locator("#shipped tbody tr:visible").count() > 20
    rows, find = page.locator("#shipped tbody tr:visible"), page.get_by_label("Find in the tables")
    find.fill("m=16 relu gpt3")
    expect(rows).to_have_count(2)  # one for each measured card
    for card in ("H100", "H200"):
        find.fill(f"m=16 relu gpt3 {card}")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("decode-plain/gpt3-tp8/m16")


# In CI, tests/service/api/test_pages.py has the file, and test_dashboard.py the filters.
@pytest.mark.soak
def test_the_file_of_trials_has_the_filters_of_the_table(page: Page, server: Server, job_id: str) -> None:
    page.goto(f"{server.url}/ui/jobs/{job_id}?outcome=measured&plan_kind=library")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV of all matching trials").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("number,plan_kind,outcome,time_us")
    assert len(lines) == 2
