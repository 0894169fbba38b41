"""Jobs over HTTP: priorities and other terms, lookup, pausing, resuming and retrying."""

from __future__ import annotations

import pytest

from tests.service.api.conftest import Api
from tests.support.serving import SMALL_PAIR, body


@pytest.mark.slow
def test_a_job_keeps_its_terms_and_is_found_by_each_of_them(idle_api: Api, slow_api: Api) -> None:
    http = slow_api.http
    jobs = []
    for m, project, label in ((16, "llama", "nightly"), (32, "llama", "manual"), (16, "qwen", "nightly")):
        pair = {**SMALL_PAIR, "m": m, "d_hidden": 512 if project == "llama" else 768}
        given = {"project": project, "labels": [label, "all"], "priority": 1, "deadline_s": 3600}
        jobs.append(http.post("/jobs", json=body(pair=pair, **given)).json())
    assert (jobs[0]["project"], jobs[0]["labels"], jobs[0]["priority"]) == ("llama", ["all", "nightly"], 1)
    assert jobs[0]["deadline_at"] is not None
    ids = [job["id"] for job in jobs]

    def found(**query: object) -> list[str]:
        return [job["id"] for job in slow_api.get("/jobs", params=query)["items"]]

    assert found(project="llama") == [ids[1], ids[0]]
    assert found(label="nightly") == [ids[2], ids[0]]
    assert found(label="nightly", project="llama") == [ids[0]]
    assert found(m=16) == [ids[2], ids[0]]
    assert found(n=768, k=256) == [ids[2]]
    assert found(target="h200") == found(owner="nobody") == []
    page = slow_api.get("/jobs", params={"label": "all", "limit": 2})
    rest = slow_api.get("/jobs", params={"label": "all", "limit": 2, "cursor": page["next_cursor"]})
    assert [job["id"] for job in page["items"] + rest["items"]] == ids[::-1]
    assert http.get("/jobs", params={"m": 16, "cursor": page["next_cursor"]}).status_code == 422


@pytest.mark.slow
def test_a_job_is_paused_resumed_cancelled_and_tried_again(slow_api: Api) -> None:
    http = slow_api.http
    http.post("/jobs", json=body(budget={"trials": 500}))
    job = http.post("/jobs", json=body(pair={**SMALL_PAIR, "m": 64})).json()
    detail = slow_api.get(f"/jobs/{job['id']}")
    assert (detail["queue_position"], detail["queue_eta_s"]) == (1, None)
    paused = http.post(f"/jobs/{job['id']}:pause")
    assert (paused.status_code, paused.json()["is_paused"], paused.json()["reason"]) == (200, True, "it is paused")
    assert slow_api.get(f"/jobs/{job['id']}")["queue_position"] is None
    assert http.post(f"/jobs/{job['id']}:resume").json()["is_paused"] is False
    assert http.post(f"/jobs/{job['id']}:retry").status_code == 409
    http.post(f"/jobs/{job['id']}:cancel")
    again = http.post(f"/jobs/{job['id']}:retry")
    assert (again.status_code, again.headers["location"]) == (202, f"/jobs/{again.json()['id']}")
    assert http.post(f"/jobs/{job['id']}:retry").status_code == 200
    refused = http.post(f"/jobs/{job['id']}:pause")
    assert (refused.status_code, ":retry submits it again" in refused.json()["detail"]) == (409, True)
    assert http.post("/jobs/job-0:retry").status_code == 404


def test_terms_out_of_bounds_are_refused(idle_api: Api) -> None:
    for given in ({"priority": 11}, {"labels": [""]}, {"labels": ["x"] * 17}, {"deadline_s": 0}, {"project": "x" * 65}):
        assert idle_api.http.post("/jobs", json=body(**given)).status_code == 422, given


@pytest.mark.slow
def test_the_labels_of_who_asked_for_a_job_are_bounded(slow_api: Api) -> None:
    pair = {**SMALL_PAIR, "m": 24}

    def asked(*numbers: int) -> dict[str, object]:
        return {"pair": pair, "labels": [f"label {number}" for number in numbers]}

    http = slow_api.http
    job = http.post("/jobs", json=asked(*range(10))).json()
    assert len(http.post("/jobs", json=asked(*range(4, 16))).json()["labels"]) == 16
    batch = {**asked(3, 99), "pairs": [pair]}
    del batch["pair"]
    for refused in (http.post("/jobs", json=asked(3, 99)), http.post("/batches", json=batch)):
        (error,) = refused.json()["errors"]
        assert (refused.status_code, error["field"]) == (422, "labels")
        assert "would have 17 of your labels" in error["problem"]
        assert error["remedy"] == "an owner may give a job at most 16 labels: leave some out, or reuse existing ones"
    assert http.post("/jobs", json=asked(3)).json()["id"] == job["id"]
