"""A layer that starts with its qkv product, from `POST /jobs` to its artifact, on the simulated target."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.service.api.test_attention import SCHEMA, charts
from tests.service.api.test_chains import submit
from tests.support.between import between
from tests.support.lanes import one_in
from tests.support.serving import listening, running_service
from tuner.client.commands.packs.making import order_of_jobs
from tuner.client.terminal.pack_tables import ladder_table
from tuner.packs.read import read_pack
from tuner.packs.signing import verify
from tuner.wire.requests.pairs import Chain

pytestmark = pytest.mark.slow

OPS = ["qkv", "attention", "o_proj", "gate_up", "down"]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path: Path = tmp_path_factory.mktemp("between")
    with running_service(path) as service, listening(service) as url, httpx.Client(base_url=url, timeout=120) as http:
        yield http


def _submit(http: httpx.Client, num_behind: int, **pages: Any) -> dict[str, Any]:
    chain = Chain.from_workload(between(num_behind=num_behind, sizes={"max_length": 700}, pages=pages))
    return submit(http, json.loads(chain.model_dump_json()), budget={"trials": 14})


@pytest.fixture(scope="module")
def pair(http: httpx.Client) -> dict[str, Any]:
    """[qkv, attention, o_proj], the ops of one of several tensor-parallel ranks."""
    return _submit(http, 1)


@pytest.fixture(scope="module")
def layer(http: httpx.Client) -> dict[str, Any]:
    """The whole layer, with a paged cache."""
    return _submit(http, 3, page_tokens=16)


@pytest.fixture(params=one_in(2, ["layer", "pair"]))
def job(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.getfixturevalue(request.param)
    return found


def best_of(http: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    best: dict[str, Any] = http.get(job["links"]["best"]).json()
    return best


def launch_names(manifest: dict[str, Any]) -> list[list[str]]:
    """The ops of each launch, in the order in which they run."""
    lists = {
        "attentions": [[one["op"]] for one in manifest["attentions"]],
        "launches": [one["ops"] for one in manifest["launches"]],
    }
    return [lists[one["list"]][one["index"]] for one in manifest["launch_order"]]


def test_a_job_keeps_its_ops_in_their_order(job: dict[str, Any]) -> None:
    names = [op["name"] for op in job["pair"]["ops"]]
    assert names == OPS[: len(names)]
    assert job["pair"]["ops"][1]["source"] == "qkv"


def test_finals_are_of_each_kind_that_does_not_span_the_attention(
    http: httpx.Client, pair: dict[str, Any], layer: dict[str, Any]
) -> None:
    kinds = {"library", "n_launches", "n_launches_pdl"}
    assert {row["candidate"]["plan_kind"] for row in best_of(http, pair)["finals"]} == kinds
    finals = best_of(http, layer)["finals"]
    assert {row["candidate"]["plan_kind"] for row in finals} == kinds | {"runs"}
    in_runs = [row["candidate"]["schedule"] for row in finals if row["candidate"]["plan_kind"] == "runs"]
    assert all(1 in schedule["ordering"]["run_starts"] for schedule in in_runs)
    assert all(row["time_us"] > 0 for row in finals)


def test_an_artifact_says_in_which_order_its_launches_run(http: httpx.Client, job: dict[str, Any]) -> None:
    zipped = zipfile.ZipFile(io.BytesIO(http.get(best_of(http, job)["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    has_pages = job["pair"]["ops"][1]["page_tokens"] is not None
    assert manifest["format"] == (5 if has_pages else 4), "older clients would run the attention first"
    order = launch_names(manifest)
    assert order[:2] == [["qkv"], ["attention"]]
    assert [name for launch in order for name in launch] == OPS[: len(job["pair"]["ops"])]
    roles = {tensor["name"]: tensor["role"] for tensor in manifest["tensors"]}
    assert (roles["qkv"], roles["attention"]) == ("intermediate", "intermediate")
    assert roles[job["pair"]["ops"][-1]["name"]] == "output"
    assert [name for name in roles if name.endswith((".keys", ".values", ".lengths"))] == [
        "attention.keys", "attention.values", "attention.lengths",
    ]  # fmt: skip
    assert "qkv.frequencies" in roles
    assert [name for name, role in roles.items() if role == "pages"] == ["attention.pages"] * has_pages


def test_every_page_of_a_job_shows_its_launches_in_their_order(http: httpx.Client, job: dict[str, Any]) -> None:
    best = best_of(http, job)
    numbers = [row["trial_number"] for row in best["finals"]]
    base = f"/ui/jobs/{job['id']}"
    trials = [f"{base}/trials/{number}" for number in numbers]
    pages = [base, "/", "/ui/results", f"/ui/compare?a={job['id']}/{numbers[1]}&b={job['id']}/{numbers[2]}", *trials]
    pages += [f"{base}/{name}.json" for name in ("points", "axes", "forecasts")]
    pages += [f"{base}/trials.csv", f"{trials[1]}/source", f"{trials[1]}.json"]
    for page in pages:
        answer = http.get(page, headers={"Accept": "text/html"})
        assert answer.status_code == 200, (page, answer.text[:500])
    shown = http.get(f"{base}.json").json()["ops"]
    assert [op["name"] for op in shown] == OPS[: len(shown)]
    launches = [op["launch"] for op in shown]
    assert launches[:3] == [1, 2, 3]
    assert launches == sorted(launches)
    page = http.get(base, headers={"Accept": "text/html"}).text
    assert "attention reads qkv as its input" in page
    assert f"{max(launches)} launches compute {len(shown)} ops: qkv; attention; o_proj" in page
    assert shown[1]["reads_ops"] == {"source": "qkv"}


def test_measured_or_forecast_a_chart_has_the_attention_between_its_neighbours(
    http: httpx.Client, job: dict[str, Any]
) -> None:
    row = best_of(http, job)["finals"][1]
    products = [op["name"] for op in job["pair"]["ops"] if op["name"] != "attention"]
    for chart in charts(http, f"{job['links']['self']}/trials/{row['trial_number']}"):
        assert chart["op_names"] == [*products, "attention"]
        names = [chart["op_names"][op] for op in chart["tasks"]["op"]]
        launches = dict(zip(names, chart["tasks"]["launch"], strict=True))
        assert sorted(launches, key=launches.__getitem__)[:3] == ["qkv", "attention", "o_proj"]
        assert chart["makespan_ns"] == max(chart["tasks"]["stored"])


# In CI, test_attention.py has priors of attentions.
@pytest.mark.soak
def test_a_longer_cache_begins_with_what_was_found_for_a_shorter_one(http: httpx.Client, pair: dict[str, Any]) -> None:
    chain = Chain.from_workload(between(sizes={"max_length": 900}))
    longer = submit(http, json.loads(chain.model_dump_json()))
    assert {prior["source"] for prior in longer["priors_used"]} == {pair["id"]}


# In CI, test_attention.py makes a pack of attentions.
@pytest.mark.soak
def test_a_pack_is_made_of_layers_as_their_jobs_have_them(
    http: httpx.Client, pair: dict[str, Any], layer: dict[str, Any]
) -> None:
    order = order_of_jobs([pair, layer], min_gain=0.01)
    assert [(name, len(order[name])) for name in ("shapes", "layers")] == [("shapes", 0), ("layers", 2)]
    assert "attentions" not in order
    made = http.post("/packs", json=order)
    assert made.status_code == 201, made.text
    content = http.get(made.json()["href"]).content
    pack = read_pack(content)
    verify(pack.sums, pack.signature, made.json()["key"])
    assert http.post("/packs", json=order).json() == made.json()
    by_names = {entry.shape.names: entry.at(4, 700) for entry in pack.section("layers")}
    assert set(by_names) == {tuple(OPS[:3]), tuple(OPS)}
    for names, rung in by_names.items():
        assert rung is not None
        assert rung.provenance["job"] == (pair if len(names) == 3 else layer)["id"]
        assert (rung.kernel is None) == (rung.provenance["winner"] == "library")
        assert rung.kernel is None or rung.kernel.simulated
    cells = zip(*(column.cells for column in ladder_table(pack).columns), strict=True)
    front = "fp16 256 -> qkv 512 norm rotary -> attention -> o_proj 256 residual"
    behind = " -> gate_up 512 norm gated silu -> down 256 residual"
    assert [row[:2] for row in cells] == [
        (f"{front}{behind}: 4 heads of 64 over 2, pages of 16", "4 x 700 tokens"),
        (f"{front}: 4 heads of 64 over 2", "4 x 700 tokens"),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": []}, "list the tuned shapes"),
        ({"batch_invariant": True}, "only an FFN of `shapes` supports it"),
    ],
)
def test_what_cannot_be_packed_of_layers_is_a_problem_that_says_why(
    http: httpx.Client, pair: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    response = http.post("/packs", json={**order_of_jobs([pair], min_gain=1.02), **changes})
    assert (response.status_code, words in response.json()["detail"]) == (422, True), response.text


def test_a_layer_and_an_attention_are_told_apart(http: httpx.Client, pair: dict[str, Any]) -> None:
    order = order_of_jobs([pair], min_gain=1.02)
    misplaced = {**order, "layers": [], "attentions": order["layers"]}
    response = http.post("/packs", json=misplaced)
    assert response.status_code == 422
    assert "attentions.0: belongs in layers; move it there" in response.json()["detail"]


def test_what_a_launch_may_not_span_or_no_cache_fits_is_refused(http: httpx.Client, pair: dict[str, Any]) -> None:
    qkv, attention, o_proj = pair["pair"]["ops"]
    for ops, field, words in (
        ([qkv, {**attention, "max_length": 500}, o_proj], "pair.ops.1.max_length", "is 500, but qkv"),
        ([qkv, {**attention, "page_tokens": 16}, o_proj], "pair.ops.1.page_tokens", "is 16, but qkv"),
        ([qkv, attention, {**o_proj, "residual": "qkv"}], "pair.ops", "whose keys and values go to a cache"),
        ([qkv, o_proj, attention], "pair.ops", "o_proj reads attention, which a later op writes"),
    ):
        answer = http.post("/jobs", json={"pair": {**pair["pair"], "ops": ops}, "budget": {"trials": 12}})
        assert answer.status_code == 422
        assert words in answer.text
        assert field in answer.text
