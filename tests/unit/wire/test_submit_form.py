"""The form for jobs: presets, ladders, and equivalent commands."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click
import pytest

from tuner.client.commands.submit import submit
from tuner.errors import InvalidInput
from tuner.wire.requests.batches import BatchRequest
from tuner.wire.requests.requests import TuneRequest
from tuner.wire.requests.submit_form import SubmitForm, as_client, as_curl, path_of


def parsed(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind and the options of the command that the page shows; an unknown option is refused."""
    kind, *words = shlex.split(as_client("http://localhost:8000", body))[4:]
    command = submit.get_command(click.Context(submit), kind)
    assert command is not None
    return kind, command.make_context(kind, words).params


def test_the_usual_fields_are_a_body_that_the_api_takes() -> None:
    body = SubmitForm().body()
    assert path_of(body) == "/jobs"
    assert TuneRequest.model_validate(body).to_spec("h200").workload.describe() == "ffn fp16 M=16 4096 -> 14336 -> 4096"


def test_a_model_on_several_ranks_and_rows_is_a_batch_of_the_shape_of_one_rank() -> None:
    fields = {"model": "llama3-8b", "tp": "2", "m": "64, 1,16", "labels": "a, b", "project": "p"}
    body = SubmitForm.of(fields).body()
    assert path_of(body) == "/batches"
    (shape,) = body["shapes"]
    assert (shape["m"], shape["d_hidden"], shape["gated"]) == ([1, 16, 64], 7168, True)
    batch = BatchRequest.model_validate(body)
    assert [spec.workload.tile_ops[0].m for spec in batch.to_specs("h200")] == [1, 16, 64]
    assert (batch.terms.labels, batch.terms.project) == (("a", "b"), "p")


@pytest.mark.parametrize(
    ("fields", "preset", "ops"),
    [
        ({"what": "attention"}, "decoder-attention", ["attention"]),
        ({"what": "attention and o_proj", "sequences": "4"}, "decoder-attention", ["attention", "o_proj"]),
        ({"what": "decoder block", "m": "8", "dtype": "bf16"}, "decoder-block", ["o_proj", "gate_up", "down", "qkv"]),
        (
            {"what": "decoder layer", "max_length": "512", "new_tokens": "2", "page_tokens": "32"},
            "decoder-layer",
            ["attention", "o_proj", "gate_up", "down", "qkv"],
        ),
        ({"what": "decoder layer", "tp": "8", "run": "mlp"}, "decoder-layer", ["gate_up", "down"]),
    ],
)
def test_presets_of_a_decoder_layer_are_bodies_that_the_api_and_the_client_take(
    fields: dict[str, str], preset: str, ops: list[str]
) -> None:
    body = SubmitForm.of({"model": "llama3-8b", **fields}).body()
    assert path_of(body) == "/jobs"
    workload = TuneRequest.model_validate(body).to_spec("h200").workload
    assert [op.name for op in workload.ops] == ops
    assert workload.dtype == fields.get("dtype", "fp16")
    kind, given = parsed(body)
    assert (kind, given["model"]) == (preset, "llama3-8b")
    assert given.get("sequences") == body["pair"].get("sequences")
    assert given.get("projection") is (False if fields["what"] == "attention" else None)
    assert given.get("run") == fields.get("run")
    assert given.get("page_tokens") == body["pair"].get("page_tokens")
    assert [op.form.paged is not None for op in workload.launch_ops] == ["page_tokens" in fields] * bool(
        workload.launch_ops
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"what": "prefill", "model": "llama3-8b"}, "what"),
        ({"what": "decoder layer"}, "model"),
        ({"what": "decoder layer", "model": "gpt9"}, "model"),
        ({"what": "decoder layer", "model": "llama3-8b", "run": "o_proj"}, "run"),
        ({"what": "attention", "model": "llama3-8b", "run": "mlp"}, "run"),
        ({"what": "attention", "model": "llama3-8b", "max_length": "long"}, "max_length"),
        ({"what": "decoder layer", "model": "llama3-8b", "page_tokens": "few"}, "page_tokens"),
        ({"what": "decoder block", "model": "llama3-8b", "m": "1,16"}, "m"),
        ({"m": "none"}, "m"),
        *(({"m": m}, "m") for m in ("", "1,,2", "1,16,", ",")),
        ({"m": ",".join(map(str, range(1, 50)))}, "m"),
        ({"d_in": "-4"}, "d_in"),
        ({"model": "gpt9"}, "model"),
        ({"model": "llama3-8b", "tp": "3"}, "tp"),
        ({"seconds": "soon"}, "seconds"),
        *(({name: "9" * 5000}, name) for name in ("m", "d_in", "trials", "seconds")),
        ({"patience": "0"}, "patience"),
        ({"energy_within": "-1"}, "energy_within"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SubmitForm.of(fields).body()
    assert caught.value.field == field
    assert len(caught.value.problem) < 200


@pytest.mark.parametrize("m", ["16", "1,16"])
def test_the_commands_carry_the_body(m: str) -> None:
    fields = {"model": "llama3-8b", "target": "h200", "m": m, "labels": "a, b c", "project": "p"}
    body = SubmitForm.of(fields).body()
    words = shlex.split(as_curl("http://localhost:8000", body))
    assert words[1] == f"http://localhost:8000{path_of(body)}"
    assert json.loads(words[words.index("-d") + 1]) == body
    words = shlex.split(as_client("http://localhost:8000", body))
    assert words[:4] == ["tuner-client", "--url", "http://localhost:8000", "submit"]
    _, given = parsed(body)
    assert given["m"] in (16, (1, 16))
    assert (given["d_hidden"], given["target"], given["gated"]) == (14336, "h200", True)
    assert (given["labels"], given["project"]) == (("a", "b c"), "p")


@pytest.mark.parametrize("m", ["16", "1,16"])
def test_how_a_search_ends_and_what_it_looks_for_can_be_filled_in(m: str) -> None:
    plain = SubmitForm.of({"m": m, "patience": "", "priors": "nearest", "energy_within": ""}).body()
    assert plain == SubmitForm.of({"m": m}).body()
    body = SubmitForm.of({"m": m, "patience": "25", "priors": "none", "energy_within": "2.5"}).body()
    one = TuneRequest.model_validate(body) if m == "16" else BatchRequest.model_validate(body)
    specs = [one.to_spec("h200")] if isinstance(one, TuneRequest) else one.to_specs("h200")
    for spec in specs:
        assert (spec.budget.patience, spec.priors, spec.energy_within_percent) == (25, "none", 2.5)
    _, given = parsed(body)
    assert (given["patience"], given["priors"], given["energy_within_percent"]) == (25, "none", 2.5)
