"""An op of a chain from a client: a model for each known kind, with the fields of its op."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import pydantic
from pydantic import Discriminator, Tag, create_model, model_serializer

from tuner.core.problem.asked import asked_op
from tuner.core.problem.op_kinds import OpKind, broken_kinds, op_kinds
from tuner.wire.base.fields import Strict
from tuner.wire.base.models import members


class _Op(Strict):
    """An op of any kind."""

    @model_serializer(mode="wrap")
    def _without_empty_lists(self, handler: Any):  # type: ignore[no-untyped-def]  # with a type OpenAPI has no fields
        """The op without empty lists, as the published schema has none."""
        return {name: value for name, value in handler(self).items() if value != []}


@cache
def _model(kind: OpKind) -> type[Strict]:
    asked = asked_op(kind.name)
    named: Any = (Literal[kind.name], pydantic.Field(description="the kind of the op; left out for products"))
    op: dict[str, Any] = {} if kind.is_unnamed else {"op": named}
    return create_model(asked.__name__, __base__=_Op, __doc__=asked.__doc__, **op, **members(asked))


#: The prefix of an op's tag in a union; requests do not contain it.
_TAG = "op:"
#: The kinds that the ops of a chain may have; the first is the kind without a name.
_KINDS = sorted(op_kinds().values(), key=lambda kind: not kind.is_unnamed)
#: Tags of the union of ops.
OP_TAGS = tuple(f"{_TAG}{kind.name}" for kind in _KINDS)


def _tag(op: Any) -> str:
    """The tag of an op: its kind with a prefix."""
    said = op.get("op") if isinstance(op, dict) else getattr(op, "op", None)
    if said is None:
        return OP_TAGS[0]
    return f"{_TAG}{said}"


if TYPE_CHECKING:
    AnyOp = Strict
else:
    AnyOp = Annotated[
        Union[tuple(Annotated[_model(kind), Tag(f"{_TAG}{kind.name}")] for kind in _KINDS)],  # noqa: UP007
        Discriminator(_tag),
    ]


def of_unknown_kind(context: Mapping[str, Any]) -> str:
    """The remedy if Pydantic found an op of an unknown kind; empty if the error is about another union."""
    if not context.get("discriminator", "").startswith(_tag.__name__):
        return ""
    if why := broken_kinds().get(str(context.get("tag", "")).removeprefix(_TAG)):
        return f"repair its package on the server: {why}"
    named = [kind.name for kind in _KINDS if not kind.is_unnamed]
    return f"use {' or '.join([*map(repr, named), ''])}leave it out for a product"
