"""Results, artifacts, targets and probes."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import pytest

from tests.service.api.conftest import Api
from tests.support.serving import SMALL_PAIR
from tuner import __version__
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.versions import WIRE_VERSION

QUERY: dict[str, Any] = {name: value for name, value in SMALL_PAIR.items() if name != "kind"}


def test_a_result_names_its_winner_and_measures_every_kind(api: Api) -> None:
    best = api.get(f"/jobs/{api.job_id}/best")
    assert {row["candidate"]["plan_kind"] for row in best["finals"]} == {kind for kind in PlanKind if kind.is_for(2)}
    winner = best["finals"][best["winner_row"]]
    assert winner["candidate"]["plan_kind"] == best["winner"]
    assert winner["time_us"] == min(
        r["time_us"] for r in best["finals"] if r["candidate"]["plan_kind"] == best["winner"]
    )
    assert best["simulated"]
    assert best["environment"]["simulated"]


def test_a_result_is_found_by_pair_and_target(api: Api) -> None:
    found = api.get("/best", params=QUERY)
    assert (found["match"], found["differences"]) == ("exact", [])
    assert found["best"] == api.get(f"/jobs/{api.job_id}/best")


def test_a_weaker_match_says_what_differs(api: Api) -> None:
    other = {**QUERY, "m": 17}
    assert api.http.get("/best", params=other).status_code == 404
    found = api.get("/best", params={**other, "match": "nearest"})
    assert found["match"] == "nearest"
    assert "M=16" in found["differences"][0]


def test_no_simulated_result_answers_for_a_real_gpu(api: Api) -> None:
    refused = api.http.get("/best", params={**QUERY, "target": "h200", "match": "any"})
    assert (refused.status_code, "submit a job" in refused.json()["detail"]) == (404, True)


@pytest.mark.parametrize("target", ["h300", "simulated:h300"])
def test_a_gpu_that_does_not_exist_is_named_where_its_result_is_missing(api: Api, target: str) -> None:
    refused = api.http.get("/best", params={**QUERY, "target": target})
    assert (refused.status_code, "submit a job" in refused.json()["detail"]) == (404, False)
    assert f"there is no GPU called '{target}'; use one of a100, " in refused.json()["detail"]
    assert api.get("/best", params={**QUERY, "target": "simulated:a100", "match": "any"})["match"] == "any"


def test_an_artifact_is_what_its_digest_says(api: Api) -> None:
    link = api.get(f"/jobs/{api.job_id}/best")["artifact"]
    response = api.http.get(link["href"])
    assert response.headers["content-type"] == "application/zip"
    assert hashlib.sha256(response.content).hexdigest() == link["digest"]
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert manifest["simulated"] is True
        assert set(manifest["files"]) == set(archive.namelist()) - {"manifest.json"}
        assert "kernel.cubin" not in archive.namelist()


def test_an_artifact_that_the_asker_has_is_not_sent_again(api: Api) -> None:
    href = api.get(f"/jobs/{api.job_id}/best")["artifact"]["href"]
    tag = api.http.get(href).headers["etag"]
    for seen in (tag, f'"other", {tag}', "*", f"W/{tag}"):
        response = api.http.get(href, headers={"If-None-Match": seen})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", tag)
    assert api.http.get(href, headers={"If-None-Match": '"other"'}).status_code == 200


def test_targets_say_what_they_are_and_that_they_are_simulated(api: Api) -> None:
    [target] = api.get("/targets")
    assert (target["id"], target["simulated"]) == ("simulated:h200", True)
    assert target["gpu"]["num_sms"] == 132
    assert target["environment"]["gpu_name"] == "simulated NVIDIA H200"


def test_probes_answer(api: Api, idle_api: Api) -> None:
    for one in (api, idle_api):
        alive = {"status": "ok", "version": __version__, "wire_version": WIRE_VERSION}
        assert one.get("/livez") == alive
        assert one.get("/readyz") == {**alive, "quarantined": {}}


@pytest.mark.slow
def test_examples_of_the_api_description_are_accepted(api: Api) -> None:
    content = api.get("/openapi.json")["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]
    for example in content["examples"].values():
        small = {**example["value"], "budget": {"trials": 3}, "webhook": None}  # its host must be allowed
        response = api.http.post("/jobs", json=small)
        assert response.status_code == 202, response.text
        api.service.cancel(response.json()["id"])
