"""Decode attention on a GPU without a copy engine, from `POST /jobs` to its artifact: on a simulated A100."""

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

from tests.service.api.test_attention import SCHEMA, SIZES
from tests.service.api.test_chains import submit
from tests.service.api.test_layers import LAYER
from tests.support.lanes import one_in
from tests.support.serving import listening, running_service

pytestmark = pytest.mark.slow

JOBS: dict[str, dict[str, Any]] = {
    "alone": {"kind": "attention", **SIZES},
    "pages and a projection": {"kind": "attention", **SIZES, "d_out": 512, "page_tokens": 16, "window": 500},
    "layer": LAYER,
}
#: One op, two, and more. Programmatic launches need compute capability 9.0.
KINDS = {
    "alone": {"library", "two_launches"},
    "pages and a projection": {"library", "two_launches"},
    "layer": {"library", "n_launches", "fused"},
}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path: Path = tmp_path_factory.mktemp("a100")
    with (
        running_service(path, target="simulated:a100") as service,
        listening(service) as url,
        httpx.Client(base_url=url, timeout=120) as http,
    ):
        yield http


# In CI, tests/unit/workers/builder has artifacts of attentions.
@pytest.mark.soak
@pytest.mark.parametrize("name", one_in(3, JOBS))
def test_a_job_ends_with_an_artifact_that_needs_no_tensor_map(http: httpx.Client, name: str) -> None:
    job = submit(http, JOBS[name])
    best = http.get(job["links"]["best"]).json()
    assert {row["candidate"]["plan_kind"] for row in best["finals"]} == KINDS[name]
    ours = [row["candidate"] for row in best["finals"][1:]]
    (attentions,) = {len(candidate["schedule"]["attentions"]) for candidate in ours}
    assert attentions == 1
    assert {candidate["schedule"]["attentions"][0]["engine"] for candidate in ours} == {"mma"}
    assert all("loaded by cp.async" in " ".join(candidate["words"]) for candidate in ours)
    zipped = zipfile.ZipFile(io.BytesIO(http.get(best["artifact"]["href"]).content))
    manifest = json.loads(zipped.read("manifest.json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
    (launch,) = manifest["attentions"]
    assert (launch["tensor_maps"], launch["cluster"], launch["programmatic_dependent_launch"]) == ([], [1, 1, 1], False)
    first = {field["name"]: (field["offset"], field["tensor"]) for field in launch["parameter"]["fields"][:2]}
    assert first == {"keys": (0, "attention.keys"), "values": (8, "attention.values")}
