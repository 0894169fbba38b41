"""The trial page and the order explorer as a user sees them, by mouse and by keyboard."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.conftest import serious
from tests.support.serving import Server
from tests.support.traced import SMALL, store_traced_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traced(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that has a job with a trace, and the path of the page of its trial."""
    data: Path = tmp_path_factory.mktemp("traced") / "data"
    job_id = store_traced_job(data, SMALL)
    with Server(data, "--gpu", "simulated:h200") as server:
        yield server, f"/ui/jobs/{job_id}/trials/0"


def drawn(page: Page) -> None:
    """Waits until both charts are drawn."""
    expect(page.locator("figure.gantt canvas.bars[data-drawn]")).to_have_count(2)


def colours(page: Page, figure: str) -> int:
    """The number of distinct colours of a chart's bars."""
    return int(
        page.evaluate(
            """(of) => {
              const canvas = document.querySelector(`figure[data-of=${of}] canvas.bars`);
              const top = Math.round(24 * canvas.height / canvas.clientHeight);
              const data = canvas.getContext("2d").getImageData(60, top, canvas.width - 70, canvas.height - top).data;
              const seen = new Set();
              for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
              return seen.size;
            }""",
            figure,
        )
    )


def test_trace_and_forecast_are_drawn_beside_each_other_zoomed_by_keys_and_are_tables_below(
    page: Page, traced: tuple[Server, str]
) -> None:
    server, path = traced
    page.goto(server.url + path)
    drawn(page)
    for figure in ("measured", "forecast"):
        assert colours(page, figure) >= 4, figure
    expect(page.locator("figure[data-of=measured] figcaption")).to_contain_text("96 tasks on 96 SMs")
    bars = page.locator("figure[data-of=measured] canvas.bars")
    bars.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("n")
    task = page.locator("#gantt-task")
    expect(task).to_contain_text("SM 1,")
    for _ in range(70):
        page.keyboard.press("ArrowDown")
    expect(task).to_contain_text("Waited for")
    expect(task).to_contain_text("16 tasks; last up")
    page.keyboard.press("f")
    expect(task).to_contain_text(", up (")
    page.keyboard.press("w")
    page.get_by_label("Colour by").select_option("op")
    expect(page.locator("#gantt-legend")).to_contain_text("down")
    page.keyboard.press("Escape")
    page.locator("figure[data-of=forecast] summary").click()
    expect(page.locator("figure[data-of=forecast] details")).to_contain_text("The longest waits")


# In CI, tests/service/api/test_trial.py has the tables.
@pytest.mark.soak
def test_the_timeline_is_there_without_a_script_and_as_tables(browser: Browser, traced: tuple[Server, str]) -> None:
    server, path = traced
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.url + path)
    expect(page.locator("svg.schedule rect.waiter")).to_have_count(1)
    expect(page.locator("svg.schedule rect.awaited")).to_have_count(16)
    page.get_by_role("link", name="the tables").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("The trace in tables")
    expect(page.locator("#tables tbody tr").first).to_contain_text("up")
    context.close()


# In CI, tests/service/api/test_inspections.py asks for counters.
@pytest.mark.soak
def test_counters_are_asked_for_by_a_button(page: Page, traced: tuple[Server, str]) -> None:
    server, path = traced
    page.goto(server.url + path)
    page.get_by_role("button", name="Collect counters").click()
    expect(page.locator("#counters")).to_contain_text("Bytes read from DRAM.")
    expect(page.locator("#roofline")).to_contain_text("counted bytes")


# In CI, test_every_page.py shows the explorer, and tests/service/api/test_orders.py has what it tells of a path.
@pytest.mark.soak
def test_the_explorer_walks_tiles_by_mouse_and_keys_and_takes_them_back(page: Page, traced: tuple[Server, str]) -> None:
    server, _ = traced
    page.goto(f"{server.url}/ui/explorer?rows=3&cols=3&cache=3")
    page.evaluate("window.loadedOnce = true")
    page.locator('[id="tile-0.0"]').click()
    expect(page.locator("#total")).to_have_text("2")
    page.locator('[id="tile-0.0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#total")).to_have_text("3")
    expect(page.locator("#held")).to_have_text("W0 A0 W1", use_inner_text=True)
    expect(page.locator(".board .arrows line")).to_have_count(1)
    page.locator('[id="tile-2.2"]').click()
    expect(page.locator("#total")).to_have_text("5")
    expect(page.locator("#evicted")).to_have_text("2")
    page.keyboard.press("u")
    expect(page.locator("#total")).to_have_text("3")
    page.go_back()
    expect(page.locator("#total")).to_have_text("5")
    page.locator("#order-exact").click()
    expect(page.locator("#explorer")).to_have_attribute("data-step", "0")
    page.locator("#play").click()
    expect(page.locator("#explorer")).to_have_attribute("data-step", "9")
    assert page.evaluate("window.loadedOnce") is True


# In CI, tests/service/api/test_orders.py has the numbers, and the test above shows some.
@pytest.mark.soak
def test_the_explorer_shows_the_servers_numbers(page: Page, traced: tuple[Server, str]) -> None:
    server, _ = traced
    rng = random.Random(5)
    for _ in range(2):
        query = f"rows={rng.randint(2, 4)}&cols={rng.randint(2, 4)}&second_cols={rng.randint(0, 3)}&cache=5"
        answer = httpx.get(f"{server.url}/orders?{query}").json()
        name = rng.choice(answer["standard"])["name"]
        total = httpx.get(f"{server.url}/orders?{query}&order={name}").json()["total"]
        page.goto(f"{server.url}/ui/explorer?{query}&order={name}")
        expect(page.locator("#total")).to_have_text(str(total))
        rows = page.locator("#standard tbody tr:not(.exact)").all_inner_texts()
        assert [int(row.split()[1]) for row in rows] == [one["total"] for one in answer["standard"]]


# In CI, tests/service/api/test_orders.py makes a schedule of a path.
@pytest.mark.soak
def test_a_drawn_path_is_tried_by_a_button_and_its_study_has_a_plot(page: Page, traced: tuple[Server, str]) -> None:
    server, _ = traced
    page.goto(f"{server.url}/ui/explorer?rows=2&cols=2&cache=3&path=0.0-0.1-1.1")
    expect(page.locator("#as-schedule")).to_contain_text("3 of 4 tiles are on the path")
    page.locator('[id="tile-1.0"]').click()
    with page.expect_download() as download:
        page.locator("#download").click()
    assert download.value.suggested_filename == "order.json"
    page.locator("#try").click()
    expect(page.get_by_role("heading", name="Study of")).to_be_visible()
    as_html = {"accept": "text/html"}
    wait_until(lambda: httpx.get(page.url, headers=as_html).text.count('class="interval') == 3, pause_s=0.3)
    page.reload()
    expect(page.locator(".study line.interval")).to_have_count(3)
    expect(page.locator(".study circle.ours")).to_have_count(2)
    expect(page.locator(".study tbody tr").last).to_contain_text("given-")
    assert serious(page) == []


# In CI, tests/service/api/test_orders.py says which tiles may come next.
@pytest.mark.soak
def test_a_tile_of_the_second_product_waits_for_its_row(page: Page, traced: tuple[Server, str]) -> None:
    server, _ = traced
    page.goto(f"{server.url}/ui/explorer?rows=2&cols=2&second_cols=2&cache=4&path=0.0")
    expect(page.locator(".cell.waiting")).to_have_count(4)
    expect(page.locator(".needs line.waits")).to_have_count(2)
    page.locator('[id="tile-0.1"]').click()
    expect(page.locator(".cell.waiting")).to_have_count(2)
    expect(page.locator(".needs line.ready")).to_have_count(2)


# In CI, test_every_page.py shows a trial and the explorer to axe.
@pytest.mark.soak
def test_nothing_serious_is_wrong_for_those_who_cannot_see_or_point(page: Page, traced: tuple[Server, str]) -> None:
    server, path = traced
    page.set_viewport_size({"width": 390, "height": 844})
    explorer = "/ui/explorer?rows=3&cols=3&second_cols=2&k=2&cache=4&path=0.0-0.1-0.2-b0.1"
    for address in (path, f"{path}/timeline", explorer):
        page.goto(server.url + address)
        if address == path:
            drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert serious(page, colours_alone=scheme == "dark") == [], (address, scheme)
