"""Every written manifest conforms to its schema, and the schema refuses one without a safety-relevant field."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.support.between import between
from tests.support.between_made import artifact_of, candidate_of
from tests.support.packs import TILINGS, ffn, make
from tests.support.repository import ROOT
from tuner.core.schedule.ordering import ASSIGNMENTS, Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.versions import CACHES_FORMAT, MANIFEST_FORMAT, ORDERED_FORMAT, PAGES_FORMAT, PRODUCTS_FORMAT

SCHEMA: dict[str, Any] = json.loads((ROOT / "workers/builder/manifest.schema.json").read_text())
KINDS = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)]


def check(manifest: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(manifest)))


def rows(engine: Engine) -> int:
    return 4 if engine is Engine.SIMT else 16


def test_the_schema_is_of_this_format() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    formats = [PRODUCTS_FORMAT, CACHES_FORMAT, ORDERED_FORMAT, PAGES_FORMAT, MANIFEST_FORMAT]
    assert SCHEMA["properties"]["format"]["enum"] == formats


@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_of_every_plan_kind_and_engine_is_what_the_schema_says(kind: PlanKind, engine: Engine) -> None:
    for simulated in (False, True):
        check(make(kind, TILINGS[engine], workload=ffn(rows(engine), full=True), simulated=simulated).kernel.manifest)


@pytest.mark.parametrize("pages", [{}, {"page_tokens": 16}])
def test_a_manifest_with_products_in_front_of_an_attention_is_what_the_schema_says(pages: dict[str, Any]) -> None:
    workload = between(pages=pages)
    manifest = json.loads(json.dumps(artifact_of(workload, candidate_of(workload))[0].manifest))
    check(manifest)
    manifest["launch_order"][0]["list"] = "kernels"
    with pytest.raises(jsonschema.ValidationError, match="kernels"):
        check(manifest)


@pytest.mark.parametrize("fact", ["needs_all_ctas", "reads_weights_before_wait", "plain", "workspace"])
def test_a_manifest_without_a_fact_of_safety_is_refused(fact: str) -> None:
    manifest = json.loads(json.dumps(make().kernel.manifest))
    del manifest["launches"][0][fact]
    with pytest.raises(jsonschema.ValidationError, match=fact):
        check(manifest)


def test_a_manifest_tells_what_a_launch_needs() -> None:
    def launch(kind: PlanKind, assignment: Assignment) -> dict[str, Any]:
        made = make(kind, TILINGS[Engine.WGMMA], workload=ffn(640), assignment=assignment)
        found: dict[str, Any] = made.kernel.manifest["launches"][0]
        return found

    for assignment in (Assignment.STATIC, Assignment.FIRST_WAVE):
        for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL):
            assert launch(kind, assignment)["needs_all_ctas"] is True
            assert launch(kind, assignment)["plain"]["cooperative"] is True
    assert launch(PlanKind.FUSED_PDL, Assignment.TICKET)["needs_all_ctas"] is False
    early = {
        assignment: launch(PlanKind.FUSED_PDL, assignment)["reads_weights_before_wait"] for assignment in ASSIGNMENTS
    }
    assert early[Assignment.STATIC]
    assert early[Assignment.FIRST_WAVE]
    assert not early[Assignment.TICKET]
    space = launch(PlanKind.FUSED, Assignment.STATIC)["workspace"]
    assert space["zero_bytes"] == space["slots"] <= space["bytes"]


def test_a_residual_alone_may_be_the_output() -> None:
    assert make().kernel.manifest["aliasing"] == []
    (pair,) = make(workload=ffn(full=True)).kernel.manifest["aliasing"]
    assert pair["tensors"] == "down.residual, down"
