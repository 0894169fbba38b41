"""JSON of an op from its fields, the default for kinds that do not define their own."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tuner.errors import InvalidInput

T = TypeVar("T")

#: Metadata keys for the bounds of a field's value.
BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")
_KEEPS: Mapping[str, Callable[[Any, Any], bool]] = {
    **{name: getattr(operator, name) for name in BOUNDS[:4]},
    "min_length": lambda value, bound: len(value) >= bound,
    "max_length": lambda value, bound: len(value) <= bound,
}
#: The pattern of a text in a request, usually the name of a tensor, and its maximum length in characters.
TEXT, MOST_CHARACTERS = r"^[A-Za-z_][A-Za-z0-9_.-]*$", 60
#: Methods of Pydantic's models that do not begin with ``model_``. Source: Pydantic 2, ``BaseModel``.
_OF_MODELS = frozenset(
    (
        *("construct", "copy", "dict", "from_orm", "json", "parse_file", "parse_obj", "parse_raw"),
        *("schema", "schema_json", "update_forward_refs", "validate"),
    )
)
#: Types of values, and their names in JSON.
_PLAIN: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def fields_to_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their default, as plain JSON values."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {field.name: _plain(found[field.name]) for field in fields(value) if found[field.name] != _default(field)}


def fields_from_json(cls: type[T], data: dict[str, Any]) -> T:
    """Inverse of `fields_to_json`.

    Raises:
        InvalidInput: names the field that is unknown, missing, or of the wrong type, and what would be valid.
    """
    hints, needed = _hints_and_needed(cls)  # type: ignore[arg-type]  # a class is hashable
    if other := next((name for name in data if name not in hints), None):
        raise InvalidInput(other, "is not a known field", f"use some of {', '.join(hints)}")
    if missing := next((name for name in needed if name not in data), None):
        raise InvalidInput(missing, "is missing", "add it")
    return cls(**{name: _typed(name, value, hints[name]) for name, value in data.items()})


@cache
def _hints_and_needed(cls: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Field types of a dataclass, and the names of fields without a default; cached, since every submission needs
    them."""
    hints = hints_of(cls)
    return {one.name: hints[one.name] for one in fields_of(cls)}, tuple(
        one.name for one in fields_of(cls) if is_needed(one)
    )


def fields_of(cls: Any) -> tuple[Field[Any], ...]:
    """The fields of a dataclass that is typed as something else."""
    return fields(cls)


def is_needed(field: Field[Any]) -> bool:
    """Whether a field has no default."""
    return _default(field) is MISSING


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    return get_type_hints(cls)


def spelling_problem(cls: Any, taken: Collection[str]) -> str:
    """Why the fields of a class cannot be keys of a document that already has the keys `taken`; empty if they can."""
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        return "is not a frozen dataclass"
    try:
        hints = hints_of(cls)
    except Exception as error:  # arbitrary code from another package
        return f"has fields whose types cannot be read: {type(error).__name__}: {error}"
    found = (_field_problem(one, hints[one.name], taken) for one in fields(cls))
    return next(
        (f"has the field {one.name!r}, {problem}" for one, problem in zip(fields(cls), found, strict=True) if problem),
        "",
    )


def _field_problem(one: Field[Any], hint: Any, taken: Collection[str]) -> str:
    if one.name in taken:
        return "which documents use for something else"
    if one.name in _OF_MODELS or one.name.startswith(("_", "model_")):
        return "whose name no model of a request can have: use another word"
    if not _has_form(hint):
        return f"of type {hint}, which JSON cannot represent: use {', '.join(_PLAIN.values())}, a StrEnum, a tuple"
    for bound in BOUNDS:
        if bound in one.metadata and type(one.metadata[bound]) not in (int, hint):
            return f"of type {hint.__name__}, with {one.metadata[bound]!r} for {bound!r}"
    default = _default(one)
    try:
        if default is not MISSING:
            _typed(one.name, _plain(default), hint)
    except InvalidInput as error:
        return f"whose default {error.problem}: {error.remedy}"
    return ""


def defaults_problem(cls: Any) -> str:
    """The default of a class that responses contain but no request could give; empty if there is none."""
    found = ((one.name, _default_problem(_default(one), one.metadata)) for one in fields(cls))
    return next((f"has the field {name!r}, {problem}" for name, problem in found if problem), "")


def _default_problem(default: Any, metadata: Mapping[str, Any]) -> str:
    if default in (MISSING, None):
        return ""
    for bound, keeps in _KEEPS.items():
        if bound in metadata and not keeps(default, metadata[bound]):
            return f"whose default is {default!r}: with {bound} {metadata[bound]!r}, use one within it"
    texts = default if isinstance(default, tuple) else (default,)
    wrong = (one for one in texts if type(one) is str and (len(one) > MOST_CHARACTERS or not re.match(TEXT, one)))
    text = next(wrong, None)
    if text is None:
        return ""
    return f"whose default is {text!r}: use a name of letters, digits, _, . and - that begins with a letter, or None"


def _has_form(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType, tuple):
        return all(_has_form(one) for one in get_args(hint) if one not in (NoneType, ...))
    if is_dataclass(hint):
        return not spelling_problem(hint, ())
    return hint in _PLAIN or (isinstance(hint, type) and issubclass(hint, StrEnum))


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, StrEnum) else value


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Converts a JSON value to the type of its field.

    Raises:
        InvalidInput: it has the wrong type.
    """
    if type(value) is hint and hint in (bool, int, str):  # most values are
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        others = [one for one in args if one is not NoneType]
        return None if value is None and len(others) < len(args) else _typed(name, value, others[0])
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InvalidInput(name, f"is {value!r}", "pass a list")
        kinds = args[:1] * len(value) if args[1:] == (...,) else args
        if len(kinds) != len(value):
            raise InvalidInput(name, f"has {len(value)} entries", f"use {len(kinds)}")
        return tuple(_typed(f"{name}.{i}", one, kind) for i, (one, kind) in enumerate(zip(value, kinds, strict=True)))
    if is_dataclass(hint):
        return _nested(name, value, hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if isinstance(value, hint):
            return value
        if value not in list(hint):
            raise InvalidInput(name, f"is {value!r}", f"use one of {', '.join(hint)}")
        return hint(value)
    return _number_or_text(name, value, hint)


def _nested(name: str, value: Any, hint: Any) -> Any:
    if not isinstance(value, dict):
        raise InvalidInput(name, f"is {value!r}", "pass a JSON object")
    try:
        return fields_from_json(hint, value)
    except InvalidInput as error:
        raise InvalidInput(f"{name}.{error.field}", error.problem, error.remedy) from error


def _number_or_text(name: str, value: Any, hint: Any) -> Any:
    if hint not in _PLAIN:
        raise TypeError(f"{name} is of type {hint}, which JSON cannot represent")
    fits = isinstance(value, hint) or (hint is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and hint is not bool):
        raise InvalidInput(name, f"is {value!r}", f"use {_PLAIN[hint]}")
    if hint is float and not math.isfinite(value):
        raise InvalidInput(name, f"is {value!r}", "use a finite number")
    return float(value) if hint is float else value
