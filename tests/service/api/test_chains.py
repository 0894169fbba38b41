"""A chain from `POST /jobs` to its artifact, on the simulated target."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cases import decoder_block
from tests.support.lanes import soaked
from tests.support.serving import listening, running_service
from tuner.wire.requests.pairs import Chain

pytestmark = pytest.mark.slow

OPS = ["o", "up", "down", "qkv"]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path: Path = tmp_path_factory.mktemp("chains")
    with running_service(path) as service, listening(service) as url, httpx.Client(base_url=url, timeout=120) as http:
        yield http


def submit(http: httpx.Client, pair: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Submits a job and waits for its end."""
    answer = http.post("/jobs", json={"pair": pair, "budget": {"trials": 12}, **changes})
    assert answer.status_code in (200, 201, 202), answer.text
    job: dict[str, Any] = answer.json()
    with http.stream("GET", job["links"]["events"]) as events:
        for _ in events.iter_lines():
            pass  # the stream ends with the job
    job = http.get(job["links"]["self"]).json()
    assert job["state"] == "succeeded", job["reason"]
    return job


@pytest.fixture(scope="module")
def job(http: httpx.Client) -> dict[str, Any]:
    """A job of a small block of four ops."""
    block = Chain.from_workload(decoder_block(16, 512, 512, 512, heads=512))
    return submit(http, json.loads(block.model_dump_json()))


def test_a_chain_has_finals_of_every_kind_and_a_verdict(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    trials = http.get(f"/jobs/{job['id']}/trials").json()["items"]
    tried = {trial["candidate"]["plan_kind"] for trial in trials}
    assert tried >= {"library", "n_launches", "runs", "fused", "fused_pdl"}
    # On the simulated card some trials fail, possibly all of a kind.
    measured = {one["candidate"]["plan_kind"] for one in trials if one["outcome"]["kind"] == "measured"}
    assert {row["candidate"]["plan_kind"] for row in best["finals"]} == measured
    all_starts = [row["candidate"]["schedule"]["ordering"].get("run_starts") for row in best["finals"][1:]]
    is_in_runs = [row["candidate"]["plan_kind"] == "runs" for row in best["finals"][1:]]
    assert [bool(starts) for starts in all_starts] == is_in_runs
    assert best["verdict"] in ("fused wins", "tie", "do not fuse")
    assert [op["name"] for op in http.get(job["links"]["self"]).json()["pair"]["ops"]] == OPS


def test_the_artifact_of_a_chain_names_its_launches(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    zipped = zipfile.ZipFile(io.BytesIO(http.get(best["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    winner = best["finals"][best["winner_row"]]["candidate"]["plan_kind"]
    assert winner == "library" or manifest["plan_kind"] == winner
    assert {f"plan{index}.bin" for index in range(len(manifest["launches"]))} <= set(zipped.namelist())


def test_the_page_of_a_chain_shows_its_ops_and_its_cut(http: httpx.Client, job: dict[str, Any]) -> None:
    page = http.get(job["links"]["page"], headers={"Accept": "text/html"}).text
    as_json = http.get(f"{job['links']['page']}.json").json()
    assert [op["name"] for op in as_json["ops"]] == OPS
    assert [op["launch"] for op in as_json["ops"]] == sorted(op["launch"] for op in as_json["ops"])
    for op in as_json["ops"]:
        cells = "".join(f"<td>{op[name]}</td>" for name in ("name", "sizes", "reads", "norm", "adds", "activation"))
        assert f'<tr>{cells}<td class="number">{op["launch"]}</td></tr>' in page
    runs = [row["candidate"] for row in as_json["best"]["finals"] if row["candidate"]["plan_kind"] == "runs"]
    assert all(any(sentence.startswith("Runs, one launch each: o") for sentence in one["words"]) for one in runs)
    assert runs


def test_the_trace_of_a_chain_has_its_four_ops(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    fused = (row for row in best["finals"] if row["candidate"]["plan_kind"] == "fused")
    ours = min(fused, key=lambda row: float(row["time_us"]))  # each kind's best is traced
    trace = http.get(f"{job['links']['self']}/trials/{ours['trial_number']}/trace")
    for _ in range(100):
        if trace.status_code != 202:
            break
        trace = http.get(f"{job['links']['self']}/trials/{ours['trial_number']}/trace")
    assert trace.status_code == 200
    assert all(name in trace.text for name in OPS)


# In CI, tests/unit/search has searches of chains, and the test above a job.
@pytest.mark.soak
@pytest.mark.parametrize(
    ("pair", "kinds"),
    [
        *soaked(
            (
                {
                    "m": 16,
                    "ops": [
                        {
                            "name": "up",
                            "source": "x",
                            "norm": "x",
                            "n": 512,
                            "k": 512,
                            "gated": True,
                            "activation": "silu",
                        },
                        {"name": "down", "source": "up", "n": 512, "k": 512},
                    ],
                },
                {"library", "two_launches", "two_launches_pdl", "two_streams", "fused", "fused_pdl"},
            )
        ),
        (
            {"m": 16, "ops": [{"name": name, "source": "x", "n": 256, "k": 512} for name in "qkv"]},
            {"library", "n_launches", "n_launches_pdl", "runs", "fused", "fused_pdl"},
        ),
        ({"m": 16, "ops": [{"name": "o", "source": "x", "n": 512, "k": 512}]}, {"library", "fused", "fused_pdl"}),
    ],
    ids=["pair", "fan-out", "one op"],
)
def test_chains_of_other_shapes_are_searched_too(http: httpx.Client, pair: dict[str, Any], kinds: set[str]) -> None:
    """Every kind is tried. The simulated target lets some trials fail, so not every kind reaches the finals."""
    job = submit(http, {"kind": "chain", **pair})
    trials = http.get(f"{job['links']['self']}/trials").json()["items"]
    assert kinds <= {trial["candidate"]["plan_kind"] for trial in trials}
    best = http.get(job["links"]["best"]).json()
    assert {row["candidate"]["plan_kind"] for row in best["finals"]} > {"library"}


def test_a_pair_of_convolutions_ends_with_a_kernel_and_is_told_op_by_op(http: httpx.Client) -> None:
    sizes = {"images": 1, "height": 14, "width": 14, "channels": 32}
    layers = {"first": {"filters": 32, "kernel": 3, "stride": 1}, "second": {"filters": 64, "kernel": 1, "stride": 1}}
    job = submit(http, {"kind": "conv-pair", **sizes, **layers, "residual": True})
    assert [op["op"] for op in job["pair"]["ops"]] == ["conv", "conv"]
    best = http.get(
        "/best", params={**sizes, "kind": "conv-pair", "first": "32,3,1", "second": "64,1,1", "residual": True}
    )
    assert (best.status_code, best.json()["match"]) == (200, "exact")
    made = http.get(f"{job['links']['self']}/best").json()
    assert {"fused", "two_launches"} <= {row["candidate"]["plan_kind"] for row in made["finals"]}
    page = http.get(f"/ui/jobs/{job['id']}", headers={"accept": "text/html"}).text
    assert "3x3 32 of 14x14" in page


# In CI, tests/unit/core/space has the joined op, and the next test a job of convolutions.
@pytest.mark.soak
def test_two_convolutions_of_a_bottleneck_are_also_tried_as_one_op(http: httpx.Client) -> None:
    sizes = {"op": "conv", "images": 1, "height": 14, "width": 14, "filters": 64, "bias": True, "activation": "relu"}
    ops = [
        {**sizes, "name": "front", "channels": 128},
        {**sizes, "name": "first", "source": "front", "channels": 64, "kernel": 3, "padding": 1},
        {**sizes, "name": "second", "source": "first", "channels": 64, "filters": 128, "residual": "x"},
    ]
    job = submit(http, {"kind": "chain", "m": 196, "ops": ops})
    made = http.get(f"{job['links']['self']}/best").json()
    (_, *ours) = made["finals"]
    assert {"joined", "fused"} <= {row["candidate"]["plan_kind"] for row in ours}
    pages = {"accept": "text/html"}
    assert "joined" in http.get(f"/ui/jobs/{job['id']}", headers=pages).text
    trials = http.get(f"{job['links']['self']}/trials", params={"plan_kind": "joined"}).json()["items"]
    link = f"{job['id']}/trials/{trials[0]['number']}"
    assert "in shared memory, then these pixels" in http.get(f"/ui/jobs/{link}", headers=pages).text
    assert "tuner_conv_pair" in http.get(f"/jobs/{link}/source").text
    zipped = zipfile.ZipFile(io.BytesIO(http.get(made["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    assert manifest["joined"] == {"second": ["first", "second"]}
    weights = [f"{name}.{what}" for name in ("front", "first", "second") for what in ("w", "bias")]
    assert {one["name"] for one in manifest["tensors"]} == {"x", "front", *weights, "second"}
    assert manifest["own_launches"][0]["kernel"]["name"] == "tuner_conv_pair"
    assert [one["list"] for one in manifest["launch_order"]] == ["launches", "own_launches"]
