"""Makes a strict model from a dataclass: its fields' types, defaults and metadata (``doc`` and bounds)."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pydantic
from pydantic import create_model

from tuner.core.problem.ops.codec import BOUNDS, hints_of
from tuner.wire.base.fields import Name, Strict


def members(cls: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass in the form of `create_model`."""
    hints = hints_of(cls)
    return {field.name: _member(field, hints[field.name]) for field in fields(cls) if field.name not in without}


def _member(field: Field[Any], hint: Any) -> tuple[Any, Any]:
    about: dict[str, Any] = bounds_of(field)
    if field.default is not MISSING:
        about["default"] = [*field.default] if isinstance(field.default, tuple) else field.default
    elif field.default_factory is not MISSING:
        about["default_factory"] = field.default_factory
    return type_of(hint), pydantic.Field(description=field.metadata.get("doc"), **about)


def bounds_of(field: Field[Any]) -> dict[str, Any]:
    """Bounds of a field's value."""
    return {bound: field.metadata[bound] for bound in BOUNDS if bound in field.metadata}


def type_of(hint: Any) -> Any:
    """The type in a strict model for the type of a dataclass field."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(None if one is NoneType else type_of(one) for one in args)]  # noqa: UP007
    if origin is tuple:
        return list[type_of(args[0])]  # type: ignore[misc]
    if is_dataclass(hint):
        return _nested(hint)  # type: ignore[arg-type]  # a class is hashable
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Annotated[hint, pydantic.Field(strict=False)]  # JSON has no enumerations
    return Name if hint is str else hint


@cache
def _nested(cls: type) -> Any:
    return create_model(cls.__name__, __base__=Strict, __doc__=cls.__doc__, **members(cls))
