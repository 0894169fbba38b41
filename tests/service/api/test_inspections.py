"""Counters and traces over HTTP, and trials that cannot be inspected."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.service.api.conftest import Api, serving
from tests.service.api.test_bad_input import refused
from tests.service.api.test_pages import HTML
from tests.service.service.helpers import FailingKinds
from tests.support.serving import body, wait_until_final
from tuner.core.schedule.plan_kinds import PlanKind


def when_there(api: Api, path: str) -> httpx.Response:
    """The answer once it is no longer pending."""
    deadline = time.monotonic() + 90
    while (response := api.http.get(path)).status_code == 202:
        assert response.json()["state"] == "pending"
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
    return response


def number_of(api: Api, **filters: str) -> int:
    trials = api.get(f"/jobs/{api.job_id}/trials", params={"sort": "time", **filters})["items"]
    return int(trials[0]["number"])


@pytest.fixture(scope="module")
def fused(api: Api) -> int:
    """The number of a measured fused trial that is not a finalist, so it has not been inspected."""
    finals = {row["trial_number"] for row in api.get(f"/jobs/{api.job_id}/best")["finals"]}
    trials = api.get(f"/jobs/{api.job_id}/trials", params={"outcome": "measured", "plan_kind": "fused"})["items"]
    return next(int(trial["number"]) for trial in trials if trial["number"] not in finals)


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, {}, {"metrics": None}, {"metrics": ["dram__bytes_read.sum"]}])
def test_counters_are_asked_for_and_got(api: Api, fused: int, content: dict[str, Any] | None) -> None:
    path = f"/jobs/{api.job_id}/trials/{fused}/counters"
    asked = api.http.post(path, **({} if content is None else {"json": content}))
    assert asked.status_code in (200, 202)
    assert asked.headers["location"] == asked.json()["href"] == path
    found = when_there(api, path).json()
    assert (found["job_id"], found["trial_number"], found["kind"]) == (api.job_id, fused, "counters")
    assert (found["state"], found["reason"], found["simulated"]) == ("done", "", True)
    assert found["metrics"] == (content or {}).get("metrics")
    names = {counter["name"] for counter in found["counters"]}
    assert "dram__bytes_read.sum" in names
    assert all(counter["description"] for counter in found["counters"])
    again = api.http.post(path, **({} if content is None else {"json": content}))
    assert (again.status_code, again.json()["counters"]) == (200, found["counters"])


def test_an_energy_is_asked_for_and_got(api: Api, fused: int) -> None:
    path = f"/jobs/{api.job_id}/trials/{fused}/energy"
    asked = api.http.post(path)
    assert asked.status_code in (200, 202)
    assert asked.headers["location"] == path
    found = when_there(api, path).json()
    assert (found["kind"], found["state"], found["reason"], found["simulated"]) == ("energy", "done", "", True)
    assert found["run_mj"] > 0
    assert (found["power_w"], found["window_s"]) == (0, 0), "a model has no window"


def test_a_trace_is_asked_for_and_got_as_json_and_as_a_file(api: Api, fused: int) -> None:
    path = f"/jobs/{api.job_id}/trials/{fused}/trace"
    assert refused(api.http.get(path), 404)["detail"].endswith(f"; request it with POST {path}")
    assert api.http.post(path).headers["location"] == path
    found = when_there(api, path).json()
    assert (found["state"], found["simulated"], found["op_names"]) == ("done", True, ["up", "down"])
    assert found["makespan_ns"] == max(span["stored_ns"] for span in found["spans"])
    for shares in found["shares"]:
        assert sum(shares[part] for part in ("wait", "load", "compute", "store")) == pytest.approx(1)
    file = api.http.get(path, params={"format": "perfetto"})
    assert file.headers["content-disposition"] == f'attachment; filename="{api.job_id}-trial-{fused}.trace.json"'
    document = file.json()
    assert document["otherData"]["simulated"] is True
    assert sum(event["ph"] == "X" for event in document["traceEvents"]) >= len(found["spans"])
    refused(api.http.get(path, params={"format": "svg"}), 422)


def test_what_inspections_showed_is_among_the_metrics_of_the_trial(api: Api, fused: int) -> None:
    for kind in ("counters", "trace"):
        api.http.post(f"/jobs/{api.job_id}/trials/{fused}/{kind}")
        when_there(api, f"/jobs/{api.job_id}/trials/{fused}/{kind}")
    for listing in (api.get(f"/jobs/{api.job_id}/trials"), api.get(f"/ui/jobs/{api.job_id}.json")["trials"]):
        trial = next(trial for trial in listing["items"] if trial["number"] == fused)
        tags = [metric["tag"] for metric in trial["outcome"]["metrics"]]
        assert len(tags) == len(set(tags))
        assert {"dram__bytes_read.sum", "tail_share", "wait_share.up"} <= set(tags)


@pytest.mark.parametrize(
    ("metrics", "field"),
    [
        ([], "metrics"),
        ("dram__bytes_read.sum", "metrics"),
        (["dram bytes"], "metrics.0"),
        ([""], "metrics.0"),
        (["x" * 121], "metrics.0"),
        ([7], "metrics.0"),
        (["a"] * 65, "metrics"),
    ],
)
def test_an_odd_list_of_metrics_is_refused_with_its_field(api: Api, fused: int, metrics: object, field: str) -> None:
    response = api.http.post(f"/jobs/{api.job_id}/trials/{fused}/counters", json={"metrics": metrics})
    assert refused(response, 422)["errors"][0]["field"] == field


def test_a_metric_that_the_gpu_does_not_know_is_refused_with_near_ones(api: Api, fused: int) -> None:
    path = f"/jobs/{api.job_id}/trials/{fused}/counters"
    api.http.post(path, json={"metrics": ["dram__byte_read.sum"]})
    [error] = refused(when_there(api, path), 422)["errors"]
    assert error["field"] == "metrics"
    assert "dram__byte_read.sum" in error["problem"]
    assert "dram__bytes_read.sum" in error["remedy"]


def test_what_does_not_run_or_does_not_exist_is_refused(api: Api) -> None:
    library = number_of(api, plan_kind="library")
    [error] = refused(api.http.post(f"/jobs/{api.job_id}/trials/{library}/trace"), 422)["errors"]
    assert (error["field"], "library" in error["problem"], "plan_kind=fused" in error["remedy"]) == (
        "number",
        True,
        True,
    )
    for path, status in ((f"/jobs/{api.job_id}/trials/99", 404), ("/jobs/job-0/trials/0", 404)):
        for kind in ("counters", "trace"):
            refused(api.http.post(f"{path}/{kind}"), status)
            refused(api.http.get(f"{path}/{kind}"), status)
    for number in ("-1", "x", str(2**31)):
        assert refused(api.http.get(f"/jobs/{api.job_id}/trials/{number}/trace"), 422)["errors"][0]["field"] == "number"


@pytest.mark.slow
def test_a_trial_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data", evaluators=[FailingKinds(PlanKind.FUSED)]) as api:
        job_id = api.http.post("/jobs", json=body(budget={"trials": 3})).json()["id"]
        assert wait_until_final(api.service, job_id) == "succeeded"
        [failed, *_] = api.get(f"/jobs/{job_id}/trials", params={"outcome": "failed"})["items"]
        [error] = refused(api.http.post(f"/jobs/{job_id}/trials/{failed['number']}/counters"), 422)["errors"]
    assert error["field"] == "number"
    assert "not measured" in error["problem"]
    assert "outcome=measured" in error["remedy"]


def test_the_page_and_its_json_form_show_the_finalists_inspections(api: Api) -> None:
    path = f"/ui/jobs/{api.job_id}"
    finalists = api.get(f"{path}.json")["inspected"]
    assert {"library", "fused"} <= {one["plan_kind"] for one in finalists}
    html = api.http.get(path, headers=HTML).text
    for one in finalists:
        assert one["counters"]["state"] == "done"
        for figure in one["counters"]["figures"]:
            assert f"<code>{figure['tag']}</code>" in html
        assert (one["trace"] is None) == (one["plan_kind"] == "library")
        if one["trace"] is not None:
            assert f'href="{one["trace"]["download"]}"' in html
            assert api.get(one["trace"]["download"])["otherData"]["simulated"] is True


@pytest.mark.slow
def test_examples_of_the_counters_are_accepted(api: Api, fused: int) -> None:
    route = api.get("/openapi.json")["paths"]["/jobs/{job_id}/trials/{number}/counters"]["post"]
    for example in route["requestBody"]["content"]["application/json"]["examples"].values():
        response = api.http.post(f"/jobs/{api.job_id}/trials/{fused}/counters", json=example["value"])
        assert response.status_code in (200, 202), response.text


@pytest.mark.parametrize("format", ["json", "perfetto"])
def test_a_trace_is_what_the_description_says_in_either_form(api: Api, format: str) -> None:
    best = api.get(f"/jobs/{api.job_id}/best")
    number = next(row["trial_number"] for row in best["finals"] if row["candidate"]["plan_kind"] == "fused")
    path = f"/jobs/{api.job_id}/trials/{number}/trace"
    api.http.post(path)
    when_there(api, path)
    found = api.get(path, params={"format": format})
    description = api.get("/openapi.json")
    route = description["paths"]["/jobs/{job_id}/trials/{number}/trace"]["get"]
    schema = route["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(found, {**schema, "components": description["components"]})
    assert ("traceEvents" in found) is (format == "perfetto")
