"""An op of a chain as a client gives it: a model for each kind that is known, by its own file or by its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, Union, get_args, get_origin

import pydantic
from pydantic import Discriminator, Tag, create_model

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op import Op
from tuner.core.problem.op_codec import hints_of
from tuner.core.problem.op_kinds import OpKind, op_kinds, part_of
from tuner.errors import InvalidInput
from tuner.wire.fields import Name, Strict

#: Keys of a field's metadata that are bounds of its value.
_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")


class OpModel(Protocol):
    """An op of a chain, whose rows and element type are the chain's."""

    def to_op(self, m: int, dtype: Dtype) -> Op:
        """The op.

        Raises:
            InvalidInput: names what is wrong with a field, behind the op's name.
        """

    @classmethod
    def from_op(cls, op: Any) -> Self:
        """Inverse of `to_op`."""


class _OfFields(Strict):
    """The model of an op whose kind says nothing of it but its fields."""

    _kind: ClassVar[OpKind]

    def to_op(self, m: int, dtype: Dtype) -> Op:
        """The op."""
        data = self.model_dump(mode="json", exclude_none=True)
        rows = {"m": m} if "m" in hints_of(self._kind.op) else {}
        try:
            op = self._kind.op.from_json(data | rows, dtype)
        except InvalidInput as error:
            raise InvalidInput(f"{data['name']}.{error.field}", error.problem, error.remedy) from error
        if op.m != m:
            raise InvalidInput("m", f"is {m}, and {op.name} has {op.m} rows", f"give {op.m}")
        return op

    @classmethod
    def from_op(cls, op: Op) -> Self:
        """Inverse of `to_op`."""
        return cls.model_validate({name: value for name, value in op.to_json().items() if name != "m"})


def model_of(op: Op) -> type[OpModel]:
    """The model of an op's kind, which is known here."""
    return _model(op_kinds()[op.KIND])


@cache
def _model(kind: OpKind) -> type[OpModel]:
    part = part_of(kind.name, "wire")
    model: type[OpModel] = part.MODEL if part else _derived(kind)
    return model


def _derived(kind: OpKind) -> type[OpModel]:
    """By the fields of a kind's ops: their types, defaults and metadata (``doc`` and bounds)."""
    named: Any = pydantic.Field(description="the kind of the op")
    model = create_model(
        f"Chain{kind.name.title().replace('_', '').replace('-', '')}",
        __base__=_OfFields,
        __doc__=kind.op.__doc__,
        **{"op": (Literal[kind.name], named), **_members(kind.op, without=("m",))},
    )
    model._kind = kind
    found: type[OpModel] = model
    return found


def _members(cls: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    hints = hints_of(cls)
    return {field.name: _member(field, hints[field.name]) for field in fields(cls) if field.name not in without}


def _member(field: Field[Any], hint: Any) -> tuple[Any, Any]:
    about: dict[str, Any] = {bound: field.metadata[bound] for bound in _BOUNDS if bound in field.metadata}
    if field.default is not MISSING:
        about["default"] = field.default
    elif field.default_factory is not MISSING:
        about["default_factory"] = field.default_factory
    return _type(hint), pydantic.Field(description=field.metadata.get("doc"), **about)


def _type(hint: Any) -> Any:
    """What a strict model has for the type of a dataclass' field."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(None if one is NoneType else _type(one) for one in args)]  # noqa: UP007
    if origin is tuple:
        return list[_type(args[0])]  # type: ignore[misc]
    if is_dataclass(hint):
        return _nested(hint)  # type: ignore[arg-type]  # a class is hashable
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Annotated[hint, pydantic.Field(strict=False)]
    return Name if hint is str else hint


@cache
def _nested(cls: type) -> Any:
    return create_model(cls.__name__, __base__=Strict, __doc__=cls.__doc__, **_members(cls))


#: Begins the tag of an op in a union, which no request names.
_TAG = "op:"
#: What an op of a chain may be: first the kind that is not named.
_KINDS = sorted(op_kinds().values(), key=lambda kind: not kind.is_unnamed)
#: Tags of the union of ops.
OP_TAGS = tuple(f"{_TAG}{kind.name}" for kind in _KINDS)


def _tag(op: Any) -> str:
    """Which of the ops it is: one kind alone does not say so."""
    said = op.get("op") if isinstance(op, dict) else getattr(op, "op", None)
    if said is None:
        return OP_TAGS[0]
    return f"{_TAG}{said}"


if TYPE_CHECKING:
    AnyOp = OpModel
else:
    AnyOp = Annotated[
        Union[tuple(Annotated[_model(kind), Tag(f"{_TAG}{kind.name}")] for kind in _KINDS)],  # noqa: UP007
        Discriminator(_tag),
    ]


def of_unknown_kind(context: Mapping[str, Any]) -> str:
    """What would be right where Pydantic found an op of no known kind; empty where it speaks of another union."""
    if not context.get("discriminator", "").startswith(_tag.__name__):
        return ""
    named = [kind.name for kind in _KINDS if not kind.is_unnamed]
    return f"use {' or '.join(map(repr, named))}, or leave it out for a product"
