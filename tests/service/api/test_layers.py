"""A small decoder layer from `POST /jobs` to its artifact: an attention, then a chain that writes to a cache."""

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
from tests.support.serving import listening, running_service

pytestmark = pytest.mark.slow

HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 64, "max_length": 700}
LAYER = {
    "kind": "chain",
    "m": 4,
    "dtype": "bf16",
    "ops": [
        {"op": "attention", "name": "attention", "sequences": 4, **HEADS},
        {"name": "o_proj", "source": "attention", "n": 512, "k": 512, "residual": "residual"},
        {"name": "down", "source": "o_proj", "n": 512, "k": 512, "norm": "o_proj", "residual": "o_proj"},
        {"name": "qkv", "source": "down", "n": 768, "k": 512, "norm": "down", "rotary": HEADS},
    ],
}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path: Path = tmp_path_factory.mktemp("layers")
    with running_service(path) as service, listening(service) as url, httpx.Client(base_url=url, timeout=120) as http:
        yield http


@pytest.fixture(scope="module")
def job(http: httpx.Client) -> dict[str, Any]:
    return submit(http, LAYER)


def test_a_layer_has_finals_of_the_library_and_of_several_ways_to_launch_its_products(
    http: httpx.Client, job: dict[str, Any]
) -> None:
    assert job["pair"]["ops"][3]["rotary"] == {**HEADS, "new_tokens": 1, "page_tokens": None, "heads_first": True}
    assert job["pair"]["ops"][3]["n"] == 768
    kinds = {row["candidate"]["plan_kind"] for row in http.get(job["links"]["best"]).json()["finals"]}
    assert kinds <= {"library", "n_launches", "n_launches_pdl", "runs", "fused", "fused_pdl"}
    assert "library" in kinds
    assert len(kinds) >= 4


def test_its_artifact_says_what_is_turned_and_where_keys_and_values_go(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    zipped = zipfile.ZipFile(io.BytesIO(http.get(best["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    roles = {tensor["name"]: (tensor["role"], tensor["shape"]) for tensor in manifest["tensors"]}
    assert roles["qkv"] == ("output", [4, 512])
    assert roles["qkv.keys"] == roles["qkv.values"] == ("cache", [4, 2, 700, 64])
    assert (roles["qkv.lengths"], roles["qkv.frequencies"]) == (("lengths", [4]), ("frequencies", [32]))
    assert roles["qkv.w"] == ("weight", [768, 512])
    assert (
        "the first halves of all heads, in the order of the heads, then the second"
        in manifest["numbers"]["rotary_meaning"]
    )
    fields = {field["name"]: field for field in manifest["parameter"]["fields"]}
    assert [fields[f"qkv.{name}"]["meaning"] for name in ("heads", "kv_heads", "max_length", "new_tokens")] == [
        *("8", "2", "700", "1"),
    ]
    assert (
        "constexpr int kRotaryOp = 2, kRotaryHeadDim = 64, kRotaryPageTokens = 0;" in zipped.read("kernel.cu").decode()
    )


def test_every_page_of_a_layer_shows_it(http: httpx.Client, job: dict[str, Any]) -> None:
    best = http.get(job["links"]["best"]).json()
    base = f"/ui/jobs/{job['id']}"
    number = best["finals"][1]["trial_number"]
    for page in (base, "/", "/ui/results", f"{base}/trials/{number}", f"{base}/trials/{number}/source"):
        answer = http.get(page, headers={"Accept": "text/html"})
        assert answer.status_code == 200, (page, answer.text[:500])
    shown = http.get(f"{base}.json").json()
    assert [op["name"] for op in shown["ops"]] == ["attention", "o_proj", "down", "qkv"]
    assert "768" in shown["ops"][3]["sizes"]
    assert "rotary" in shown["ops"][3]["sizes"]


def test_the_charts_of_a_layer_have_all_of_its_ops_and_who_waits_for_whom(
    http: httpx.Client, job: dict[str, Any]
) -> None:
    best = http.get(job["links"]["best"]).json()
    for row in best["finals"][1:]:
        for chart in charts(http, f"{job['links']['self']}/trials/{row['trial_number']}"):
            names = [chart["op_names"][op] for op in chart["tasks"]["op"]]
            assert set(names) == {"attention", "o_proj", "down", "qkv"}
            first = [name for name, launch in zip(names, chart["tasks"]["launch"], strict=True) if launch == 0]
            assert set(first) == {"attention"}
            waits = chart["waits"]
            assert len(waits["posts"]) == len(waits["first_wait"]) == len(names)
            assert set(waits["posts"][: len(first)]) == {-1}
            assert any(post >= 0 for post in waits["posts"]) == (
                not row["candidate"]["plan_kind"].startswith("n_launches")
            )


# In CI, test_attention.py has priors of attentions, and tests/service/service/test_priors.py of products.
@pytest.mark.soak
def test_the_next_layer_begins_with_what_was_found(http: httpx.Client, job: dict[str, Any]) -> None:
    longer = {**HEADS, "max_length": 900}
    attention, *products, qkv = LAYER["ops"]  # type: ignore[misc]
    ops = [{**attention, **longer}, *products, {**qkv, "rotary": longer}]
    after = submit(http, {**LAYER, "ops": ops})
    assert {prior["source"] for prior in after["priors_used"]} == {job["id"]}
