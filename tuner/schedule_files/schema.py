"""The JSON schema of a schedule file, derived from the domain's types, and the check of a document against it.

`docs/schedule-file.schema.json` has this schema for editors; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.op_kinds import OpKind, op_kinds
from tuner.core.problem.workload import WorkloadKind
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.codec import parts
from tuner.core.schedule.levels import LaunchConfig, TileOpSchedule, schedule_class
from tuner.core.schedule.ordering import TaskOrder

Json = dict[str, Any]

#: A workload in the form of `pair` in `POST /jobs`.
_ASKED = {"type": "object", "required": ["kind"], "not": {"required": ["ops"]}}
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schedule_schema() -> Json:
    """The JSON schema of a `Schedule`: with the released keys, or by level."""
    levels = {"launch": _of(LaunchConfig), "order": _of(TaskOrder)}
    ops = {"type": "array", "items": {"anyOf": [_of_choice(kind) for kind in ("", *op_kinds())]}}
    return _object({name: _of(kind) for name, kind in parts().items()} | {"ops": ops} | levels, [])  # some of them


def _of_choice(kind: str) -> Json:
    """The schema of the choices for an op of that kind; without a kind, for any tile op."""
    whole = _of(schedule_class(kind) if kind else TileOpSchedule)
    return _object({**_named(kind), **whole["properties"]}, [*_named(kind), *whole["required"]])


def _named(kind: str) -> Json:
    return {"op": {"enum": [kind]}} if kind else {}


def workload_schema() -> Json:
    """Schema of a `Workload` in its JSON form."""
    ops = {"anyOf": [_of_op(kind) for kind in sorted(op_kinds().values(), key=lambda one: not one.is_unnamed)]}
    properties = {
        "kind": {"enum": [str(one) for one in WorkloadKind]},
        "ops": {"type": "array", "items": ops},
        "dtype": {"enum": [str(one) for one in Dtype]},
        "num_in_front": {"type": "integer"},
    }
    return _object(properties, ["kind", "ops", "dtype"])


def _of_op(kind: OpKind) -> Json:
    """Schema of an op of that kind."""
    hints, named = kind.op.json_hints(), {} if kind.is_unnamed else _named(kind.name)
    needed = [name for name, (_, is_needed) in hints.items() if is_needed]
    return _object({**named, **{name: _of(hint) for name, (hint, _) in hints.items()}}, [*named, *needed])


def file_schema() -> Json:
    """Schema of a schedule file that is written by hand."""
    properties = {
        "$schema": {"type": "string"},
        "gpu": {"enum": list(CATALOGUE)},
        "workload": {"anyOf": [workload_schema(), _ASKED]},
        "schedule": {"anyOf": [schedule_schema(), {"type": "string"}]},
    }
    whole = _object(properties, ["workload", "schedule", "gpu"])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A schedule file of tuner explain"}
    return {**head, **whole}


def faults(document: Any, schema: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str, str]]:
    """The errors of a document: where, what is wrong, and what would be valid.

    Args:
        document: JSON.
        schema: one of this module's schemas.
        where: prefix of each path, e.g. ``schedule``.
    """
    place = where or "the file"
    if (choices := schema.get("anyOf")) is not None:
        of_its_type = [one for one in choices if one.get("type") == _type_of(document)]
        found = [[*faults(document, one, where)] for one in of_its_type or choices]
        yield from min(found, key=len)
        return
    if "enum" in schema:
        if document not in schema["enum"]:
            yield place, f"is {document!a}", f"use one of {', '.join(map(str, schema['enum']))}"
        return
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if _type_of(document) not in wanted and not ("number" in wanted and _type_of(document) == "integer"):
        yield place, f"is {document!a:.60}", f"use {' or '.join(f'a JSON {one}' for one in wanted)}"
    elif isinstance(document, list):
        for number, one in enumerate(document):
            yield from faults(one, schema["items"], f"{where}.{number}" if where else str(number))
    elif isinstance(document, dict):
        yield from _faults_of_object(document, schema, where)


def _faults_of_object(document: Json, schema: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, str]]:
    known = schema["properties"]
    for name, value in document.items():
        place = f"{where}.{name}" if where else name
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            yield place, "is not a known key there", remedy
        else:
            yield from faults(value, known[name], place)
    for name in schema["required"]:
        if name not in document:
            yield where or "the file", f"has no {name}", "use it"


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object", NoneType: "null"}
    return names.get(type(value), "not a JSON value")


def _object(properties: Mapping[str, Any], required: list[str]) -> Json:
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _of(kind: Any) -> Json:
    """The schema of a domain type."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        axes = axes_of(kind)
        chosen = [one for one in fields(kind) if one.name in axes]
        needed = [one.name for one in chosen if one.default is MISSING and one.default_factory is MISSING]
        return _object({one.name: _of(hints[one.name]) for one in chosen}, needed)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [str(one) for one in kind]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _of(get_args(kind)[0])}
    assert get_origin(kind) in (Union, UnionType), kind
    return {"anyOf": [{"type": "null"} if one is NoneType else _of(one) for one in get_args(kind)]}
