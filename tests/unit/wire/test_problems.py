"""Problem documents: one field, one problem, one remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tuner.wire.problems import KINDS, FieldProblem, of_validation, problem
from tuner.wire.requests import EXAMPLES, TuneRequest

PAIR: dict[str, Any] = EXAMPLES["smallest"]["value"]["pair"]


def first_problem(**changes: Any) -> FieldProblem:
    with pytest.raises(ValidationError) as refusal:
        TuneRequest.model_validate({"pair": PAIR, **changes})
    return of_validation(refusal.value.errors()[0])


@pytest.mark.parametrize(
    ("changes", "field", "word", "remedy"),
    [
        ({"pair": {**PAIR, "m": 0}}, "pair.m", "got 0", "give at least 1"),
        ({"budget": {"seconds": 0}}, "budget.seconds", "got 0", "give more than 0"),
        ({"budget": {"trials": 10**6}}, "budget.trials", "got 1000000", "give at most 100000"),
        ({"seed": "1"}, "seed", "got '1'", "give a value that is a valid integer"),
        ({"colour": 1}, "colour", "not a known field", "check its spelling, or remove it"),
        ({"pair": {**PAIR, "dtype": "fp8"}}, "pair.dtype", "'fp8'", "use 'fp16' or 'bf16'"),
        (
            {"pair": {**PAIR, "kind": "x"}},
            "pair.kind",
            "'x'",
            "use one of 'ffn', 'independent', 'chain', 'decoder-block', 'attention', 'decoder-attention', "
            "'decoder-layer'",
        ),
        (
            {"pair": {"m": 1}},
            "pair.kind",
            "is missing",
            f"give one of {', '.join(KINDS)}",
        ),
        ({"pair": {"kind": "ffn"}}, "pair.m", "is missing", "add it"),
    ],
)
def test_a_refusal_names_the_field_what_is_wrong_and_what_would_be_right(
    changes: dict[str, Any], field: str, word: str, remedy: str
) -> None:
    found = first_problem(**changes)
    assert (found.field, found.remedy) == (field, remedy)
    assert word in found.problem


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
