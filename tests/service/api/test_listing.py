"""The rows of the front page: their order, batches as single rows, owners, and ending several jobs at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.support.lanes import one_in
from tests.support.many_jobs import many_jobs
from tests.support.serving import listening
from tuner.core.access.caller import Caller, Role
from tuner.core.trial.job import JobState
from tuner.errors import Forbidden
from tuner.service import Service
from tuner.store import Store

#: Maximum time for 500 jobs on the front page, by the server's clock, seconds; a browser's limit is 1.
MAX_S = 0.5


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """500 jobs in 20 batches by 10 owners, some in each state, and 30 single jobs; no server runs them."""
    store = Store.open(tmp_path_factory.mktemp("many") / "data")
    with closing(many_jobs(store)) as service, listening(service) as url:
        yield service, url


def rows(url: str, query: str = "") -> list[dict[str, object]]:
    """All rows of the front page, page by page."""
    found: list[dict[str, object]] = []
    cursor = ""
    while True:
        answer = httpx.get(f"{url}/.json?{query}{'&cursor=' + cursor if cursor else ''}")
        answer.raise_for_status()
        page = answer.json()["jobs"]
        found += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            return found


@pytest.mark.slow
def test_each_batch_is_one_row_and_those_under_way_come_first(many: tuple[Service, str]) -> None:
    found = rows(many[1])
    batches = [row["batch"] for row in found if row["batch"]]
    assert (len(found), len(batches)) == (50, 20)
    assert sum(one["num_jobs"] for one in batches) == 500  # type: ignore[index]
    assert batches[0]["name"].endswith(", M 8–200")  # type: ignore[index]
    ranks = [
        0 if "searching" in states else 1 if "queued" in states else 2
        for row in found
        for states in [row["batch"]["jobs_by_state"] if row["batch"] else [row["state"]]]  # type: ignore[index]
    ]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}


def test_a_batch_is_opened_into_its_jobs(many: tuple[Service, str]) -> None:
    batch = next(row["batch"] for row in rows(many[1]) if row["batch"])
    found = rows(many[1], f"batch={batch['id']}")  # type: ignore[index]
    assert [row["batch"] for row in found] == [None] * 25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sort", "key"),
    one_in(
        4,
        [
            ("newest", lambda row: row["created_at"]),
            ("speedup", lambda row: row["best_speedup"] or 0.0),
            ("time", lambda row: -(row["best_us"] or 1e9)),
            ("trials", lambda row: row["num_trials"]),
        ],
    ),
)
def test_other_orders_list_every_job_once_over_all_pages(many: tuple[Service, str], sort: str, key: object) -> None:
    found = rows(many[1], f"sort={sort}")
    assert len({row["id"] for row in found}) == len(found) == 530
    keys = [key(row) for row in found]  # type: ignore[operator]
    assert keys == sorted(keys, reverse=True)


def test_mine_are_those_of_one_owner_and_a_cursor_is_of_its_listing_alone(many: tuple[Service, str]) -> None:
    found = rows(many[1], "owner=owner3")
    assert len(found) == 2 + 3
    assert {name for row in found for name in row["owners"]} == {"owner3"}  # type: ignore[attr-defined]
    cursor = httpx.get(f"{many[1]}/.json?sort=newest").json()["jobs"]["next_cursor"]
    assert httpx.get(f"{many[1]}/.json?sort=time&cursor={cursor}").status_code == 422
    assert httpx.get(f"{many[1]}/.json?sort=colour").status_code == 422


def test_the_front_page_of_500_jobs_is_made_in_half_a_second(many: tuple[Service, str]) -> None:
    with httpx.Client(headers={"Accept": "text/html"}) as browser:
        browser.get(many[1])
        began = time.process_time()
        assert browser.get(many[1]).text.count("<tr") == 51
        assert time.process_time() - began < MAX_S


@pytest.mark.parametrize(("state", "is_open"), [("queued", True), ("cancelled", False)])
def test_only_where_something_can_be_ticked_is_there_a_button_to_cancel_it(
    many: tuple[Service, str], state: str, is_open: bool
) -> None:
    text = httpx.get(f"{many[1]}/?state={state}", headers={"Accept": "text/html"}).text
    found = [mark in text for mark in ("Cancel selected jobs", "<th>Select", 'type="checkbox"')]
    assert found == [is_open] * 3
    assert text.count("<tr") > 1


def test_what_is_ticked_is_ended_and_what_may_not_be_is_named(many: tuple[Service, str]) -> None:
    service, url = many
    found = rows(url)
    batch = next(row["batch"] for row in found if row["batch"] and "queued" in row["batch"]["jobs_by_state"])  # type: ignore[index]
    job = next(row for row in found if not row["batch"] and row["state"] == "queued")
    ended = next(row for row in found if not row["batch"] and row["state"] == "cancelled")
    ticked = {"job": [job["id"]], "batch": [batch["id"]], "query": "owner=owner3"}  # type: ignore[index]
    answer = httpx.post(f"{url}/ui/cancel", data=ticked)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?owner=owner3")
    assert service.job(str(job["id"])).state is JobState.CANCELLED
    assert service.batches.get(batch["id"]).state is JobState.CANCELLED  # type: ignore[index]
    assert httpx.post(f"{url}/ui/cancel", data={"query": "x"}).status_code == 422
    other = next(row for row in rows(url) if not row["batch"] and row["state"] == "queued")
    both = httpx.post(f"{url}/ui/cancel", data={"job": ["job-none", other["id"], ended["id"]]})
    assert (both.status_code, "2 of 3 were cancelled; " in both.text, "job-none" in both.text) == (409, True, True)


def test_a_batch_has_a_name_a_gain_and_a_place_in_the_queue(many: tuple[Service, str]) -> None:
    views = httpx.get(f"{many[1]}/batches?limit=50").json()["items"]
    names = {view["name"] for view in views}
    assert len(names) == 20
    assert all(name.startswith("ffn fp16 4096 -> 1") and ", M 8–200" in name for name in names)
    places = [view["queue_position"] for view in views if view["state"] in ("queued", "searching")]
    assert places
    assert None not in places
    assert {view["queue_position"] for view in views if view["state"] == "cancelled"} == {None}


def test_a_batch_waits_and_goes_on_at_its_owners_wish(many: tuple[Service, str]) -> None:
    service, url = many
    batch = next(one for one in reversed(httpx.get(f"{url}/batches").json()["items"]) if one["state"] == "queued")
    num_open = batch["jobs_by_state"]["queued"] + batch["jobs_by_state"].get("searching", 0)
    paused = httpx.post(f"{url}/batches/{batch['id']}:pause").json()
    assert (paused["num_paused"], paused["queue_position"]) == (num_open, None)
    stranger = Caller(owner="nobody", role=Role.SUBMIT, token_id="tok-1")
    with pytest.raises(Forbidden, match="only its owner and admins may resume it"):
        service.batches.pause(batch["id"], stranger, False)
    assert httpx.post(f"{url}/ui/batches/{batch['id']}/resume", data={}).status_code == 303
    assert service.batches.get(batch["id"]).num_paused == 0
    ended = next(one for one in httpx.get(f"{url}/batches").json()["items"] if one["state"] == "cancelled")
    assert httpx.post(f"{url}/batches/{ended['id']}:pause").status_code == 409
