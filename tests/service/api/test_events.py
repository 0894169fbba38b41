"""The event stream sends every event once and in order, and can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.api.conftest import NUM_TRIALS, Api
from tests.support.serving import body, listening
from tests.support.waiting import wait_until
from tuner.client.connection.event_lines import parse_events
from tuner.server.listening import streams_beside_requests


def events(http: httpx.Client, job_id: str, **options: Any) -> Iterator[dict[str, Any]]:
    with http.stream("GET", f"/jobs/{job_id}/events", **options) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield from parse_events(response.iter_lines())


def test_a_stream_tells_the_whole_story_and_ends(api: Api) -> None:
    story = list(events(api.http, api.job_id))
    assert story[-1] == {"kind": "end"}
    ids = [event["id"] for event in story[:-1]]
    assert ids == sorted(set(ids))
    states = [event["data"]["state"] for event in story if event["kind"] == "state"]
    assert states == ["queued", "searching", "finals", "succeeded"]
    assert [event["data"]["number"] for event in story if event["kind"] == "trial"] == list(range(NUM_TRIALS))


def test_a_stream_resumes_behind_the_last_event_that_was_seen(api: Api) -> None:
    story = list(events(api.http, api.job_id))[:-1]
    seen = story[4]["id"]
    for options in ({"headers": {"Last-Event-ID": str(seen)}}, {"params": {"after": seen}}):
        assert list(events(api.http, api.job_id, **options))[:-1] == story[5:]


def test_one_who_has_seen_all_of_a_finished_job_is_reported_not_to_come_back(api: Api) -> None:
    last = list(events(api.http, api.job_id))[-2]["id"]
    response = api.http.get(f"/jobs/{api.job_id}/events", headers={"Last-Event-ID": str(last)})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.slow
def test_what_happens_is_reported_while_it_happens(slow_api: Api) -> None:
    job = slow_api.http.post("/jobs", json=body(budget={"trials": 1000})).json()
    stream = events(slow_api.http, job["id"])
    while next(stream)["kind"] != "trial":
        pass
    assert slow_api.service.job(job["id"]).state == "searching"
    slow_api.service.cancel(job["id"])
    assert list(stream)[-2]["data"]["state"] == "cancelled"


@pytest.mark.slow
def test_a_stream_too_many_is_refused_and_a_request_is_not(slow_api: Api) -> None:
    job = slow_api.http.post("/jobs", json=body(budget={"trials": 1000})).json()
    path = f"/jobs/{job['id']}/events"
    with listening(slow_api.service, max_streams=2) as url, httpx.Client(base_url=url, timeout=60) as http:
        with http.stream("GET", path) as first, http.stream("GET", path) as second:
            assert {first.status_code, second.status_code} == {200}
            refused = http.get(path)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            assert "2 event streams are open" in refused.json()["detail"]
            assert http.get("/jobs").status_code == 200

        def is_free() -> bool:
            with http.stream("GET", path) as again:
                return again.status_code == 200

        wait_until(is_free)
    slow_api.service.cancel(job["id"])


@pytest.mark.parametrize(("connections", "streams"), [(1, 1), (2, 1), (8, 7), (824, 721), (1000, 875)])
def test_streams_leave_connections_for_requests(connections: int, streams: int) -> None:
    assert streams_beside_requests(connections) == streams


# In CI, streams leave connections for requests in another test.
@pytest.mark.soak
def test_many_watchers_do_not_keep_others_waiting(slow_api: Api) -> None:
    job = slow_api.http.post("/jobs", json=body(budget={"trials": 1000})).json()
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(base_url=slow_api.http.base_url, timeout=120, limits=limits) as watchers:
        streams = [events(watchers, job["id"]) for _ in range(20)]  # more than the number of waiting threads
        for stream in streams:
            next(stream)
        assert slow_api.http.get("/jobs", timeout=120).status_code == 200
        slow_api.service.cancel(job["id"])
        assert all(list(stream)[-1] == {"kind": "end"} for stream in streams)
