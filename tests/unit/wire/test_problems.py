"""Problem documents: one field, one problem, one remedy."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel, Field, ValidationError

from tuner.wire.base.fields import SHA256
from tuner.wire.requests.pairs import KINDS, Asked
from tuner.wire.requests.problems import FieldProblem, of_validation, problem
from tuner.wire.requests.requests import EXAMPLES, TuneRequest

PAIR: dict[str, Any] = EXAMPLES["smallest"]["value"]["pair"]
LAYER = {"kind": "decoder-layer", "model": "llama3-8b", "sequences": 4, "max_length": 100}
LAYER_RUNS = "use 'layer', 'from_qkv', 'qkv_attention', 'attention', 'mlp' or 'qkv'"


def first_problem(**changes: Any) -> FieldProblem:
    with pytest.raises(ValidationError) as refusal:
        TuneRequest.model_validate({"pair": PAIR, **changes})
    return of_validation(refusal.value.errors()[0])


@pytest.mark.parametrize(
    ("changes", "field", "word", "remedy"),
    [
        ({"pair": {**PAIR, "m": 0}}, "pair.m", "got 0", "use at least 1"),
        ({"budget": {"seconds": 0}}, "budget.seconds", "got 0", "use more than 0"),
        ({"budget": {"trials": 10**6}}, "budget.trials", "got 1000000", "use at most 100000"),
        ({"seed": "1"}, "seed", "got '1'", "use an integer"),
        ({"colour": 1}, "colour", "not a known field", "check its spelling, or remove it"),
        ({"pair": {**PAIR, "dtype": "fp8"}}, "pair.dtype", "'fp8'", "use 'fp16', 'bf16' or 'fp8_e4m3'"),
        (
            {"pair": {**PAIR, "kind": "x"}},
            "pair.kind",
            "'x'",
            f"use one of {', '.join(map(repr, KINDS))}",
        ),
        (
            {"pair": {"m": 1}},
            "pair.kind",
            "is missing",
            f"use one of {', '.join(KINDS)}",
        ),
        ({"pair": {"kind": "ffn"}}, "pair.m", "is missing", "add it"),
        ({"pair": {**LAYER, "run": "x"}}, "pair.run", "'x'", LAYER_RUNS),
        ({"pair": 3}, "pair", "should be a JSON object, got 3", "use a JSON object"),
        ({"pair": {**PAIR, "m": 16.5}}, "pair.m", "should be an integer, got 16.5", "use an integer"),
        ({"pair": {**PAIR, "gated": "yes"}}, "pair.gated", "got 'yes'", "use true or false"),
        ({"pair": {**PAIR, "m": None}}, "pair.m", "should be an integer, got null", "use an integer"),
        ({"pair": {**PAIR, "m": True}}, "pair.m", "should be an integer, got true", "use an integer"),
        ({"labels": "a"}, "labels", "should be a list, got 'a'", "use a list"),
        ({"labels": ["a", ""]}, "labels.1", "has 0 characters", "use at least 1"),
        ({"labels": ["a\n"]}, "labels.0", "'a\\n' has the wrong form", "use one line, without control characters"),
        ({"project": "x" * 65}, "project", "has 65 characters", "use at most 64"),
    ],
)
def test_a_refusal_names_the_field_what_is_wrong_and_what_would_be_right(
    changes: dict[str, Any], field: str, word: str, remedy: str
) -> None:
    found = first_problem(**changes)
    assert (found.field, found.remedy) == (field, remedy)
    assert word in found.problem


def test_a_pair_without_a_kind_is_told_every_kind_there_is() -> None:
    kinds = {tag for member in get_args(get_args(Asked)[0]) for tag in get_args(member.model_fields["kind"].annotation)}
    assert set(KINDS) == kinds
    assert first_problem(pair={"m": 1}).remedy == f"use one of {', '.join(KINDS)}"


@pytest.mark.parametrize(
    ("value", "problem", "remedy"),
    [
        ({"number": "x"}, "should be an integer, got 'x'", "use an integer"),
        ({"digest": "x"}, "'x' has the wrong form", "use 64 digits from 0 to 9 and a to f, as `digest` in a result"),
    ],
)
def test_a_parameter_that_is_a_word_is_refused_in_words_of_ours(
    value: dict[str, str], problem: str, remedy: str
) -> None:
    class Parameters(BaseModel):
        number: int = 0
        digest: str = Field(default="", pattern=SHA256)

    with pytest.raises(ValidationError) as refusal:
        Parameters.model_validate(value)
    found = of_validation(refusal.value.errors()[0])
    assert (found.problem, found.remedy) == (problem, remedy)


@pytest.mark.parametrize(("source", "field"), [("query", "path"), ("query", "m"), ("body", "path"), ("path", "path")])
def test_a_parameter_may_be_called_as_a_source_of_parameters(source: str, field: str) -> None:
    error = {"type": "missing", "loc": (source, field), "input": None}
    assert of_validation(error).field == field


def test_a_long_value_is_not_repeated_in_full() -> None:
    assert len(first_problem(target="x" * 10_000).problem) < 200


def test_a_problem_has_the_title_of_its_status() -> None:
    assert problem(404, "x").model_dump() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "x",
        "errors": [],
    }
