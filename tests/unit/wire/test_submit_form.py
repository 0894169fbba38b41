"""The form for jobs: presets, ladders, and commands that ask the same."""

from __future__ import annotations

import json
import shlex

import pytest

from tuner.errors import InvalidInput
from tuner.wire.requests import TuneRequest
from tuner.wire.submit_form import SubmitForm, as_client, as_curl


def test_the_usual_fields_are_a_body_that_the_api_takes() -> None:
    (body,) = SubmitForm().bodies()
    assert TuneRequest.model_validate(body).to_spec("h200").workload.describe() == "ffn fp16 M=16 4096 -> 14336 -> 4096"


def test_a_model_on_several_ranks_gives_the_shape_of_one_rank_for_each_number_of_rows() -> None:
    bodies = SubmitForm.of({"model": "llama3-8b", "tp": "2", "m": "64, 1,16", "labels": "a, b"}).bodies()
    assert [body["pair"]["m"] for body in bodies] == [1, 16, 64]
    assert {body["pair"]["d_hidden"] for body in bodies} == {7168}
    assert bodies[0]["pair"]["gated"] is True
    assert bodies[0]["labels"] == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"m": "none"}, "m"),
        ({"m": ""}, "m"),
        ({"m": ",".join(map(str, range(1, 50)))}, "m"),
        ({"d_in": "-4"}, "d_in"),
        ({"model": "gpt9"}, "model"),
        ({"model": "llama3-8b", "tp": "3"}, "tp"),
        ({"seconds": "soon"}, "seconds"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SubmitForm.of(fields).bodies()
    assert caught.value.field == field


def test_the_commands_carry_the_body() -> None:
    (body,) = SubmitForm.of({"model": "llama3-8b", "target": "h200"}).bodies()
    words = shlex.split(as_curl("http://localhost:8000", body))
    assert json.loads(words[words.index("-d") + 1]) == body
    words = shlex.split(as_client("http://localhost:8000", body))
    assert words[:4] == ["tuner-client", "--url", "http://localhost:8000", "submit"]
    assert words[words.index("--d-hidden") + 1] == "14336"
    assert words[words.index("--target") + 1] == "h200"
    assert "--gated" in words
