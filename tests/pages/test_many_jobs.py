"""Pages for fifty users: 500 jobs in 20 batches, at the width of a laptop and of a phone, in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.conftest import serious
from tests.pages.test_every_page import CLIPPED
from tests.support.lanes import soak_unless
from tests.support.many_jobs import NUM_ALONE, NUM_BATCHES, many_jobs
from tests.support.serving import listening
from tests.support.waiting import wait_until
from tuner.store import Store

pytestmark = pytest.mark.slow

#: The first paint of the front page, milliseconds, on an otherwise idle machine.
MAX_PAINT_MS = 1000
PATHS = ("/", "/?sort=speedup", "/?owner=owner3", "/ui/batches", "/ui/results", "/ui/access", "/ui/fleet")
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = Store.open(tmp_path_factory.mktemp("many") / "data")
    with closing(many_jobs(store)) as service, listening(service) as url:
        yield url


# On a busy machine, the time says nothing. In CI, tests/service/api/test_listing.py has the server's.
@pytest.mark.soak
def test_the_front_page_of_500_jobs_is_painted_within_a_second(page: Page, url: str) -> None:
    page.goto(url)
    assert page.locator("tbody tr").count() == NUM_BATCHES + NUM_ALONE
    paints = []
    for _ in range(2):
        page.reload()
        wait_until(lambda: page.evaluate(FIRST_PAINT) is not None)
        paints.append(float(page.evaluate(FIRST_PAINT)))
    assert min(paints) < MAX_PAINT_MS, paints


# In CI, test_every_page.py looks for what is cut off on a phone.
@pytest.mark.soak
@pytest.mark.parametrize("width", soak_unless(lambda _, width: width == 390, [1280, 390]))
def test_nothing_is_cut_off(page: Page, url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for path in PATHS:
        page.goto(url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate(CLIPPED) == [], path
        page.locator(".states").evaluate_all(
            "(all) => all.forEach((one) => (one.textContent = '1 finals, 1 searching, 3 succeeded, 2 cancelled'))"
        )
        for region in page.locator(".scroll:has(.listing)").all():
            scrolls, shows = region.evaluate("(region) => [region.scrollWidth, region.clientWidth]")
            assert scrolls <= shows, path
        # Other pages do not differ from those of few jobs, which other tests show to axe.
        assert path != "/" or serious(page) == []


@pytest.mark.soak
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, url: str, scheme: str, width: int) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})  # type: ignore[arg-type]
    for path in PATHS:
        page.goto(url + path)
        assert serious(page, colours_alone=scheme == "dark") == [], (scheme, path)
    page.close()


# In CI, tests/service/api/test_listing.py ends what is ticked.
@pytest.mark.soak
def test_what_is_ticked_stays_ticked_while_the_page_renews_itself_and_is_ended(page: Page, url: str) -> None:
    page.goto(f"{url}/?sort=newest&state=queued")
    boxes = page.locator("input[name=job]")
    first, second = (str(boxes.nth(place).get_attribute("value")) for place in (0, 1))
    boxes.nth(0).check()
    boxes.nth(1).check()
    with page.expect_response(lambda answer: "sort=newest" in answer.url):
        pass
    expect(page.locator(f"input[value={first}]")).to_be_checked()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel selected jobs").click()
    expect(page.locator(f"input[value={first}], input[value={second}]")).to_have_count(0)
    page.goto(f"{url}/?sort=newest&state=cancelled")
    assert first in page.content()
    assert second in page.content()
