"""A chain of two attentions, from `POST /jobs` to its artifact, on the simulated target."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.service.api.test_attention import SCHEMA, charts
from tests.service.api.test_attention_between import best_of, launch_names
from tests.service.api.test_chains import submit
from tests.support.between import two_attentions
from tests.support.serving import listening, running_service
from tuner.wire.requests.pairs import Chain
from tuner.wire.requests.sizes import check_size

#: In CI, tests/compile/test_prepare.py makes such a chain ready, and test_attention_between.py has an attention between
#: other launches.
pytestmark = pytest.mark.soak

OPS = ["q1", "attention1", "o1", "q2", "attention2", "o2"]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path: Path = tmp_path_factory.mktemp("two")
    with running_service(path) as service, listening(service) as url, httpx.Client(base_url=url, timeout=120) as http:
        yield http


def body() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Chain.from_workload(two_attentions()).model_dump_json())
    return found


@pytest.fixture(scope="module")
def job(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = submit(http, body(), budget={"trials": 24})
    return found


def test_finals_are_of_each_kind_and_span_no_attention(http: httpx.Client, job: dict[str, Any]) -> None:
    finals = best_of(http, job)["finals"]
    assert {row["candidate"]["plan_kind"] for row in finals} == {"library", "n_launches", "n_launches_pdl", "runs"}
    schedules = [row["candidate"]["schedule"] for row in finals if row["candidate"]["schedule"]]
    assert all(len(schedule["attentions"]) == 2 for schedule in schedules)
    in_runs = [row["candidate"]["schedule"] for row in finals if row["candidate"]["plan_kind"] == "runs"]
    assert all({1, 3} <= set(schedule["ordering"]["run_starts"]) for schedule in in_runs)


def test_an_artifact_has_both_in_their_places(http: httpx.Client, job: dict[str, Any]) -> None:
    zipped = zipfile.ZipFile(io.BytesIO(http.get(best_of(http, job)["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    launches = launch_names(manifest)
    assert list(chain.from_iterable(launches)) == OPS
    assert launches[1] == ["attention1"]
    assert ["attention2"] in launches
    files = set(zipped.namelist())
    assert {"attention0.cu", "attention1.cu", "attention1_tasks.bin", "kernel.cu"} <= files


def test_a_chart_has_each_attention_between_its_neighbours(http: httpx.Client, job: dict[str, Any]) -> None:
    row = best_of(http, job)["finals"][1]
    for chart in charts(http, f"{job['links']['self']}/trials/{row['trial_number']}"):
        names = [chart["op_names"][op] for op in chart["tasks"]["op"]]
        launches = dict(zip(names, chart["tasks"]["launch"], strict=True))
        assert [launches[name] for name in OPS] == sorted(launches.values())
        assert launches["attention1"] < launches["o1"] <= launches["q2"] < launches["attention2"]


def test_nothing_keeps_it_from_a_card() -> None:
    workload = two_attentions()
    check_size("pair", Chain.from_workload(workload), workload, "h200")
