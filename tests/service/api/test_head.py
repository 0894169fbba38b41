"""HEAD works on every path that has GET."""

from __future__ import annotations

import time

import pytest

from tests.service.api.conftest import Api
from tests.support.serving import body

HEAD_PATHS = ["/jobs", "/jobs/{job_id}", "/", "/ui/jobs/{job_id}", "/livez", "/openapi.json", "/static/live.js"]


@pytest.mark.slow
@pytest.mark.parametrize("path", HEAD_PATHS)
def test_head_answers_as_get_without_a_body(api: Api, path: str) -> None:
    address = path.format(job_id=api.job_id)
    head, get = api.http.head(address), api.http.get(address)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


def test_head_of_an_event_stream_does_not_wait_and_of_nothing_is_a_404(api: Api, slow_api: Api) -> None:
    job = slow_api.http.post("/jobs", json=body(budget={"trials": 500})).json()
    began = time.monotonic()
    head = slow_api.http.head(f"/jobs/{job['id']}/events")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert time.monotonic() - began < 30, "the stream lasts as long as the job"
    assert api.http.head("/jobs/job-0").status_code == 404
