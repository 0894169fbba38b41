"""Decode attention from `POST /jobs` to its artifact, alone and with its projection, on the simulated target."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from tests.service.api.test_chains import submit
from tests.support.lanes import one_in
from tests.support.repository import ROOT
from tests.support.serving import listening, running_service
from tuner.client.commands.packs.making import order_of_jobs
from tuner.client.terminal import render
from tuner.client.terminal.pack_tables import ladder_table
from tuner.packs.read import read_pack
from tuner.packs.signing import verify

pytestmark = pytest.mark.slow

SIZES = {"sequences": 4, "heads": 8, "kv_heads": 2, "head_dim": 64, "max_length": 700, "dtype": "bf16"}
SCHEMA: dict[str, Any] = json.loads((ROOT / "workers/builder/manifest.schema.json").read_text())


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path: Path = tmp_path_factory.mktemp("attention")
    with running_service(path) as service, listening(service) as url, httpx.Client(base_url=url, timeout=120) as http:
        yield http


@pytest.fixture(scope="module")
def alone(http: httpx.Client) -> dict[str, Any]:
    return submit(http, {"kind": "attention", **SIZES})


@pytest.fixture(scope="module")
def pair(http: httpx.Client) -> dict[str, Any]:
    return submit(http, {"kind": "attention", **SIZES, "d_out": 512, "lengths": "uniform"})


@pytest.fixture(scope="module")
def paged(http: httpx.Client) -> dict[str, Any]:
    form = {"page_tokens": 16, "heads_first": False, "window": 500, "soft_cap": 30.0}
    return submit(http, {"kind": "attention", **SIZES, "d_out": 512, **form})


@pytest.fixture(params=one_in(3, ["paged", "alone", "pair"]))
def job(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.getfixturevalue(request.param)
    return found


def test_a_preset_becomes_a_chain_whose_ops_say_what_they_are(alone: dict[str, Any], pair: dict[str, Any]) -> None:
    assert (alone["pair"]["kind"], alone["pair"]["m"]) == ("chain", 4)
    (attention,) = alone["pair"]["ops"]
    assert attention["op"] == "attention"
    assert {name: attention[name] for name in SIZES if name != "dtype"} == {
        name: size for name, size in SIZES.items() if name != "dtype"
    }
    first, second = pair["pair"]["ops"]
    assert (first["lengths"], second["source"], second["n"], second["k"]) == ("uniform", first["name"], 512, 512)


# In CI, tests/unit/core/problem has the JSON of each op.
@pytest.mark.soak
def test_a_form_comes_back_as_it_was_asked(paged: dict[str, Any]) -> None:
    attention = paged["pair"]["ops"][0]
    assert (attention["page_tokens"], attention["heads_first"]) == (16, False)
    assert (attention["window"], attention["soft_cap"]) == (500, 30.0)


def test_a_pack_is_made_of_attentions_as_their_jobs_have_them(
    http: httpx.Client, alone: dict[str, Any], pair: dict[str, Any], paged: dict[str, Any]
) -> None:
    order = order_of_jobs([alone, pair, paged], min_gain=0.01)
    assert (order["shapes"], len(order["attentions"])) == ([], 3)
    made = http.post("/packs", json=order)
    assert made.status_code == 201, made.text
    content = http.get(made.json()["href"]).content
    pack = read_pack(content)
    verify(pack.sums, pack.signature, made.json()["key"])
    assert http.post("/packs", json=order).json() == made.json()
    by_shape = {str(entry.shape): entry.at(4, 700) for entry in pack.section("attentions")}
    heads = "bf16 attention, 8 heads of 64 over 2"
    assert sorted(by_shape) == [
        heads,
        f"{heads}, pages of 16, tokens first, window 500, soft cap 30, projection to 512",
        f"{heads}, projection to 512",
    ]
    for rung in by_shape.values():
        assert rung is not None
        assert rung.provenance["job"] in {job["id"] for job in (alone, pair, paged)}
        assert (rung.kernel is None) == (rung.provenance["winner"] == "library")
    runs = [row[2] for row in zip(*(column.cells for column in ladder_table(pack).columns), strict=True)]
    assert sorted(runs) == sorted("library" if rung.kernel is None else render.words(rung.kernel.manifest["plan_kind"])
                                  for rung in by_shape.values() if rung)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"attentions": []}, 422, "list the tuned shapes"),
        ({"l2": "warm"}, 404, "measured with a cold L2, not a warm one"),
        ({"batch_invariant": True}, 422, "only an FFN of `shapes` supports it"),
    ],
)
def test_what_cannot_be_packed_of_attentions_is_a_problem_that_says_why(
    http: httpx.Client, alone: dict[str, Any], changes: dict[str, Any], status: int, words: str
) -> None:
    response = http.post("/packs", json={**order_of_jobs([alone], min_gain=1.02), **changes})
    assert (response.status_code, words in response.json()["detail"]) == (status, True), response.text


def test_an_attention_is_there_once_and_has_one_plain_product(http: httpx.Client, alone: dict[str, Any]) -> None:
    order = order_of_jobs([alone, alone], min_gain=1.02)
    assert len(order["attentions"]) == 1
    response = http.post("/packs", json={**order, "attentions": 2 * order["attentions"]})
    assert (response.status_code, "attentions.1: repeats attentions.0" in response.json()["detail"]) == (
        422,
        True,
    ), response.text
    gate = {"name": "o", "source": alone["pair"]["ops"][0]["name"], "n": 64, "k": 512, "gated": True}
    odd = {**alone["pair"], "ops": [*alone["pair"]["ops"], gate]}
    response = http.post("/packs", json={**order, "attentions": [odd]})
    assert response.status_code in (404, 422), response.text


def test_finals_have_a_launch_an_op_plainly_and_programmatically(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    assert [row["candidate"]["plan_kind"] for row in best["finals"]] == ["library", "two_launches", "two_launches_pdl"]
    assert all(row["time_us"] > 0 for row in best["finals"])
    schedules = [row["candidate"]["schedule"] for row in best["finals"][1:]]
    assert all(len(schedule["attentions"]) == 1 for schedule in schedules)
    assert all(("tiling" in schedule) == (len(job["pair"]["ops"]) == 2) for schedule in schedules)


def test_an_artifact_has_all_that_a_launch_takes(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    zipped = zipfile.ZipFile(io.BytesIO(http.get(best["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    (launch,) = manifest["attentions"]
    has_product = len(job["pair"]["ops"]) == 2
    assert (launch["before"], len(manifest["launches"])) == (("o_proj", 1) if has_product else (None, 0))
    assert (manifest["kernel"] is None) == (not has_product)
    assert launch["lengths"]["max"] == SIZES["max_length"]
    roles = {tensor["name"]: (tensor["role"], tensor["shape"]) for tensor in manifest["tensors"]}
    is_paged = job["pair"]["ops"][0]["page_tokens"] is not None
    cache = [176, 16, 2, 64] if is_paged else [4, 2, 700, 64]
    assert roles["attention.keys"] == roles["attention.values"] == ("cache", cache)
    assert roles["attention.lengths"] == ("lengths", [4])
    assert roles.get("attention.pages") == (("pages", [4, 44]) if is_paged else None)
    assert ("pages" in launch) == is_paged
    assert roles["attention"] == ("intermediate" if has_product else "output", [4, 512])
    tasks = np.frombuffer(zipped.read(launch["tasks"]), np.int32).reshape(-1, 2)
    queues = np.frombuffer(zipped.read(launch["queues"]), np.int32)
    assert queues[0] == 0
    assert queues[-1] == len(tasks)
    fields = {field["name"]: field.get("value") for field in launch["parameter"]["fields"]}
    assert fields["num_queues"] == len(queues) - 1
    own = (len(queues) - 1) * launch["cluster"][0]
    assert launch["grid"][0] == own or (fields["next_is_early"] and launch["grid"][0] > own)
    first = np.frombuffer(bytes.fromhex(launch["first_tasks"]), np.int32).reshape(-1, 2)
    assert (first[: len(queues) - 1] == tasks[queues[:-1]]).all()
    ends = [field["offset"] for field in launch["parameter"]["fields"]]
    assert ends == sorted(ends)
    assert launch["parameter"]["size_bytes"] % 64 == 0


# In CI, test_chains.py has the page of a chain.
@pytest.mark.soak
def test_every_page_of_a_job_shows_it(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    numbers = [row["trial_number"] for row in best["finals"]]
    base = f"/ui/jobs/{job['id']}"
    trials = [f"{base}/trials/{number}" for number in numbers]
    both = f"a={job['id']}/{numbers[1]}&b={job['id']}/{numbers[2]}"
    charts = [f"{base}/{name}.json" for name in ("points", "axes", "forecasts")]
    pages = [base, "/", "/ui/results", "/ui/fleet", f"/ui/compare?{both}", *trials, *charts]
    pages += [f"{base}/trials.csv", f"{trials[1]}/source", f"{trials[1]}.json"]
    for page in pages:
        answer = http.get(page, headers={"Accept": "text/html"})
        assert answer.status_code == 200, (page, answer.text[:500])
    assert "kHeadDim = 64" in http.get(f"{trials[1]}/source.json").json()["source"]
    shown = http.get(f"{base}.json").json()
    assert [op["name"] for op in shown["ops"]] == [op["name"] for op in job["pair"]["ops"]]
    assert "8 heads of 64 over 2" in shown["ops"][0]["sizes"]
    assert [op["launch"] for op in shown["ops"]] == [1, 2][: len(shown["ops"])]


def test_a_trial_says_in_words_how_its_attention_runs(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    candidate = best["finals"][1]["candidate"]
    words = " ".join(candidate["words"])
    assert "spans of" in words
    assert ("Raster: o_proj" in words) == (len(job["pair"]["ops"]) == 2)
    assert ("into the L2" in words) == bool(candidate["schedule"]["attentions"][0]["next_percent"])


def test_a_trace_has_the_attentions_tasks_and_the_products(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    trial = f"{job['links']['self']}/trials/{best['finals'][1]['trial_number']}"
    trace = http.get(f"{trial}/trace")
    for _ in range(100):
        if trace.status_code != 202:
            break
        trace = http.get(f"{trial}/trace")
    found = trace.json()
    products = len(job["pair"]["ops"]) - 1
    assert [one["op"] for one in found["shares"]] == [*["o_proj"] * products, "attention"]
    assert {span["launch"] for span in found["spans"] if span["op"] == products} == {0}
    assert {span["launch"] for span in found["spans"] if span["op"] < products} == set(range(1, 1 + products))
    page = http.get(trial, headers={"Accept": "text/html"})
    assert page.status_code == 200, page.text[:500]
    events = http.get(f"{trial}/trace", params={"format": "perfetto"}).json()["traceEvents"]
    assert any("attention" in event["name"] for event in events)


def charts(http: httpx.Client, trial: str) -> list[dict[str, Any]]:
    """The charts of a trial, which is traced first: its measured run and its forecast."""
    trace = http.post(f"{trial}/trace")
    for _ in range(1000):
        if trace.status_code != 202:
            break
        time.sleep(0.05)
        trace = http.get(f"{trial}/trace")
    assert trace.status_code == 200, trace.text
    assert trace.json()["reason"] == ""
    return [http.get(f"{trial}/gantt", params={"of": of}).json() for of in ("measured", "forecast")]


def test_measured_or_forecast_a_chart_has_the_attention_in_front(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    trial = f"{job['links']['self']}/trials/{best['finals'][1]['trial_number']}"
    attention, *products = (op["name"] for op in job["pair"]["ops"])
    for chart in charts(http, trial):
        assert chart["op_names"] == [*products, attention]
        names = [chart["op_names"][op] for op in chart["tasks"]["op"]]
        launches = dict(zip(names, chart["tasks"]["launch"], strict=True))
        assert launches == {attention: 0, **dict.fromkeys(products, 1)}
        assert len(chart["num_ctas"]) == len(launches)
        assert all(sum(chart["shares"][name].values()) == pytest.approx(1) for name in launches)
        assert chart["makespan_ns"] == max(chart["tasks"]["stored"])


def test_a_result_is_found_by_its_sizes_and_by_a_models_name(http: httpx.Client, alone: dict[str, Any]) -> None:
    asked = {"kind": "attention", **SIZES, "target": "simulated:h200"}
    assert http.get("/best", params=asked).json()["best"]["job_id"] == alone["id"]
    refused = http.get("/best", params={**asked, "d_in": 4})
    assert refused.status_code == 422
    assert "d_in: is not a parameter for a pair of kind attention" in refused.text


def test_the_next_job_begins_with_what_was_found(http: httpx.Client, alone: dict[str, Any]) -> None:
    longer = submit(http, {"kind": "attention", **SIZES, "max_length": 900})
    assert {prior["source"] for prior in longer["priors_used"]} == {alone["id"]}
    assert {prior["outcome"] for prior in longer["priors_used"]} == {"measured"}
