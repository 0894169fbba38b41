"""Problem documents (RFC 9457): what is wrong with a request, by field, and what is expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tuner.errors import InvalidInput
from tuner.wire.base.fields import PATTERNS_IN_WORDS
from tuner.wire.requests.ops import OP_TAGS, of_unknown_kind
from tuner.wire.requests.pairs import KINDS

#: The sources of values in Pydantic's errors.
_SOURCES = ("body", "query", "path", "header")
#: The expected type of a value, by the first part of Pydantic's error name.
_TYPES = {
    "model": "a JSON object", "dict": "a JSON object", "list": "a list", "tuple": "a list", "string": "a string",
    "int": "an integer", "float": "a number", "bool": "true or false",
}  # fmt: skip
_TYPE_ERRORS = ("type", "attributes_type", "parsing", "from_float")

#: How Pydantic calls the members of a union of types, in the location of an error.
_MEMBER = re.compile(r"(constrained-)?(int|str|float|bool)|\w+\[.*\]")

MEDIA_TYPE = "application/problem+json"

#: Values in messages are cut to this length.
_MAX_ECHO = 60


class FieldProblem(BaseModel):
    """One wrong field."""

    model_config = ConfigDict(frozen=True)

    field: str = Field(description="dotted path, e.g. `pair.m`")
    problem: str = Field(description="what is wrong")
    remedy: str = Field(description="what would be valid")


class Problem(BaseModel):
    """The body of every error."""

    model_config = ConfigDict(frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []


def problem(status: int, detail: str, errors: Sequence[FieldProblem] = ()) -> Problem:
    """A problem document with the title of its status."""
    return Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=list(errors))


def of_invalid_input(error: InvalidInput) -> FieldProblem:
    """The domain's refusal as an error in one field."""
    return FieldProblem(field=error.field, problem=error.problem, remedy=error.remedy)


def of_validation(error: Mapping[str, Any]) -> FieldProblem:
    """One of Pydantic's errors, with what is expected instead."""
    context = error.get("ctx", {})
    field = _path(error["loc"])
    match error["type"]:
        case "missing":
            return FieldProblem(field=field, problem="is missing", remedy="add it")
        case "extra_forbidden":
            return FieldProblem(field=field, problem="is not a known field", remedy="check its spelling, or remove it")
        case "union_tag_not_found":
            return FieldProblem(field=f"{field}.kind", problem="is missing", remedy=f"use one of {', '.join(KINDS)}")
        case "union_tag_invalid" if remedy := of_unknown_kind(context):
            problem = f"{_echo(error['input']['op'])} is not one of the choices"
            return FieldProblem(field=f"{field}.op", problem=problem, remedy=remedy)
        case "union_tag_invalid":
            return FieldProblem(
                field=f"{field}.kind",
                problem=f"there is no kind called {_echo(context['tag'])}",
                remedy=f"use one of {context['expected_tags']}",
            )
        case "enum" | "literal_error":
            problem = f"{_echo(error['input'])} is not one of the choices"
            return FieldProblem(field=field, problem=problem, remedy=f"use {context['expected']}")
        case "too_short" | "too_long":
            problem = f"has {context['actual_length']} entries"
            return FieldProblem(field=field, problem=problem, remedy=_remedy(context, problem))
        case "string_too_short" | "string_too_long":
            problem = f"has {len(error['input'])} characters"
            return FieldProblem(field=field, problem=problem, remedy=_remedy(context, problem))
        case "string_pattern_mismatch":
            problem = f"{_echo(error['input'])} has the wrong form"
            return FieldProblem(field=field, problem=problem, remedy=f"use {PATTERNS_IN_WORDS[context['pattern']]}")
    first, _, rest = error["type"].partition("_")
    if first in _TYPES and rest in _TYPE_ERRORS:
        problem = f"should be {_TYPES[first]}, got {_echo(error['input'])}"
        return FieldProblem(field=field, problem=problem, remedy=f"use {_TYPES[first]}")
    message = error["msg"].removeprefix("Input ")
    return FieldProblem(
        field=field, problem=f"{message}, got {_echo(error['input'])}", remedy=_remedy(context, message)
    )


def _remedy(context: Mapping[str, Any], message: str) -> str:
    bounds = {
        "ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "min_length": "at least",
        "max_length": "at most",
    }  # fmt: skip
    found = [f"{words} {str(context[key]).removesuffix('.0')}" for key, words in bounds.items() if key in context]
    return f"use {' and '.join(found)}" if found else f"use a value that {message.replace('should be', 'is')}"


def _path(location: Sequence[int | str]) -> str:
    """`("body", "pair", "ffn", "m", "constrained-int")` as `pair.m`: without the source, and the tags and types of
    unions."""
    named = location[1:] if location and location[0] in _SOURCES else location  # a parameter may be called `path`
    steps = [str(step) for step in named if step not in (*KINDS, *OP_TAGS)]
    steps = [step for place, step in enumerate(steps) if place == 0 or not _MEMBER.fullmatch(step)]
    return ".".join(steps) or "body"


def _echo(value: object) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else ascii(value)
    return text if len(text) <= _MAX_ECHO else f"{text[:_MAX_ECHO]}…"
