"""A job that was followed to its end has its result printed, even if the server restarts just then."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tuner.client import Client
from tuner.client.commands.job_commands import watch_one
from tuner.client.errors import NoResult, Unreachable
from tuner.client.follow.patience import patiently

JOB = {"id": "job-1", "workload": "ffn", "target": "h200", "state": "succeeded", "reason": "", "simulated": False}
BATCH = {
    **JOB,
    "id": "batch-1",
    "jobs_by_state": {"succeeded": 1},
    "num_jobs": 1,
    "num_trials": 1,
    "num_planned": 1,
    "eta_s": None,
    "card_share": None,
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.client.follow.patience._RETRY_S", 0.0)


@pytest.mark.parametrize(("document", "path"), [(JOB, "/jobs/job-1"), (BATCH, "/batches/batch-1")])
def test_a_result_that_a_proxy_cannot_bring_yet_is_asked_for_again(
    document: dict[str, object], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    best = {"job_id": "job-1", "id": "batch-1"}

    def answers() -> Iterator[httpx.Response]:
        yield httpx.Response(200, json=document)
        yield httpx.Response(204) if document is JOB else httpx.Response(200, json=document)
        yield from [httpx.Response(502)] * 2
        yield httpx.Response(200, json=document)
        yield httpx.Response(502)
        yield httpx.Response(200, json=document)
        yield httpx.Response(200, json=best)

    coming, asked = answers(), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return next(coming)

    with Client("http://gpu", transport=httpx.MockTransport(answer)) as client:
        watch_one(client, str(document["id"]), None, as_json=True)
    assert json.loads(capsys.readouterr().out) == best
    assert asked[-1] == f"{path}/best"
    assert next(coming, None) is None


def test_patience_ends_and_is_for_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.client.follow.patience.PATIENCE_S", -1.0)

    def gone() -> None:
        raise Unreachable("gone")

    def none() -> None:
        raise NoResult("none")

    for request, error in ((gone, Unreachable), (none, NoResult)):
        with pytest.raises(error):
            patiently(request)
