"""Which classes' fields can be fields of a document: a server reports the others before it creates their models."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.codec import defaults_problem, spelling_problem


class Mode(StrEnum):
    FAST = "fast"


def problem_of(hint: Any, default: Any = None, **bounds: Any) -> str:
    made = field(metadata=bounds) if default is None else field(default=default, metadata=bounds)
    cls = make_dataclass("Made", [("more", hint, made)], frozen=True, kw_only=True)
    return spelling_problem(cls, ("op",)) or defaults_problem(cls)


INNER = make_dataclass("Inner", [("a", int, 1)], frozen=True, kw_only=True)


@pytest.mark.parametrize(
    ("hint", "default"),
    [
        (int, 1),
        (float, 1),
        (bool, None),
        (str, "x"),
        (int | None, None),
        (Mode, Mode.FAST),
        (Dtype, Dtype.FP16),
        (tuple[int, ...], (1, 2)),
        (tuple[int, str], (1, "x")),
        (INNER, INNER()),
        (tuple[INNER, ...], (INNER(),)),
    ],
)
def test_what_has_a_form_in_json(hint: Any, default: Any) -> None:
    assert problem_of(hint, default) == ""


@pytest.mark.parametrize(
    "hint", [dict[str, int], list[int], Any, Literal["a"], object, tuple[dict[str, int], ...], Any | None]
)
def test_what_has_none_is_told(hint: Any) -> None:
    assert "has the field 'more', of type" in problem_of(hint)
    assert "which JSON cannot represent" in problem_of(hint)


def test_a_wrong_bound_or_default_is_told() -> None:
    assert problem_of(int, ge="1") == "has the field 'more', of type int, with '1' for 'ge'"
    assert problem_of(int, ge=0.5) == "has the field 'more', of type int, with 0.5 for 'ge'"
    assert problem_of(float, ge=0, le=0.5) == ""
    assert problem_of(str, min_length=2) == ""
    assert problem_of(int, "x") == "has the field 'more', whose default is 'x': use a whole number"
    assert problem_of(int, 9, le=8) == "has the field 'more', whose default is 9: with le 8, use one within it"
    assert problem_of(tuple[int, ...], (1,), min_length=2).endswith(
        "whose default is (1,): with min_length 2, use one within it"
    )
    for hint, text in ((str, ""), (str, "a b"), (tuple[str, ...], "a b"), (str, 61 * "a")):
        assert f"default is {text!r}: use a name of letters" in problem_of(hint, (text,) if hint is not str else text)
    assert problem_of(tuple[int, int], (1,)) == "has the field 'more', whose default has 1 entries: use 2"


def test_a_class_is_a_frozen_dataclass_whose_types_are_there() -> None:
    assert spelling_problem(make_dataclass("Soft", [("a", int)]), ()) == "is not a frozen dataclass"
    assert spelling_problem(int, ()) == "is not a frozen dataclass"
    lost = make_dataclass("Lost", [("a", "Nowhere")], frozen=True)
    assert spelling_problem(lost, ()) == (
        "has fields whose types cannot be read: NameError: name 'Nowhere' is not defined"
    )
    for name in ("model_config", "copy", "_hidden"):
        kept = make_dataclass("Kept", [(name, int, 1)], frozen=True)
        assert f"{name!r}, whose name no model of a request can have" in spelling_problem(kept, ())
    taken = make_dataclass("Taken", [("op", int)], frozen=True)
    assert spelling_problem(taken, ("op",)) == "has the field 'op', which documents use for something else"


def test_every_name_that_pydantic_takes_is_refused() -> None:
    for name in (one for one in dir(BaseModel) if not one.startswith("__")):
        made = make_dataclass("Made", [(name, int, 1)], frozen=True)
        assert spelling_problem(made, ()), name
