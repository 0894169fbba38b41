"""Workloads in requests and responses: a model for each way to describe one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

import pydantic
from pydantic import Field, create_model

from tuner.core.problem import asked
from tuner.core.problem.activation import Activation
from tuner.core.problem.asked import CHAIN, AskedWorkload, asked_workloads
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.wire.base.fields import DtypeName, Size, Strict
from tuner.wire.base.models import members
from tuner.wire.requests.ops import AnyOp


class Pair(Strict):
    """A way to describe a workload."""

    kind: str
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """The ops.

        Raises:
            InvalidInput: the message names the faulty field, op or connection.
        """
        return asked.workload_of(self.model_dump())


class Chain(Pair):
    """Up to eight ops in topological order: products and others, each after the ops that it reads."""

    kind: Literal["chain"] = Field(description="up to eight ops, each of which reads inputs and earlier ops")
    m: Size | None = Field(
        default=None, description="rows of every tensor; null if each op's own fields determine them, e.g. images"
    )
    ops: list[AnyOp] = Field(min_length=1, description="in topological order")

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Describes any workload, op by op."""
        return cls.model_validate(asked.chain_of(workload))


class UnknownOps(Strict):
    """The ops of a job, one of which is of a kind that this server does not know. It stores them, but cannot run
    them.
    """

    kind: Literal["unknown"] = Field(description="an op's kind is unknown")
    unknown_kinds: list[str] = Field(description="the unknown kinds, whose packages are missing")
    ops: list[dict[str, Any]] = Field(description="as stored by the server that accepted the job")
    dtype: DtypeName

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """The stored description."""
        kinds = list(workload.unknown_kinds)
        return cls(kind="unknown", unknown_kinds=kinds, ops=workload.to_json()["ops"], dtype=workload.dtype)


@cache
def model_of(one: type[AskedWorkload]) -> type[Pair]:
    """The model of a way to describe a workload."""
    kind: Any = (Literal[one.KIND], pydantic.Field(description=one.SUMMARY))
    return create_model(one.__name__, __base__=Pair, __doc__=one.__doc__, **{"kind": kind, **members(one)})


#: The names of all descriptions, which are the tags of the union.
KINDS = (*asked_workloads(), CHAIN)
_MODELS: dict[str, type[Pair]] = {**{name: model_of(one) for name, one in asked_workloads().items()}, CHAIN: Chain}
#: The descriptions that appear in responses; a preset is returned as its chain.
_ANSWERED = tuple(_MODELS[one.KIND] for one in asked_workloads().values() if one.of is not AskedWorkload.of)

if TYPE_CHECKING:

    class FfnShape(Strict):
        """An FFN without its rows."""

        dtype: Dtype
        activation: Activation

    Asked = Pair
    AnyKept = Pair | UnknownOps
    AnswerPair = Pair
else:
    FfnShape = create_model("FfnShape", __base__=Strict, **members(asked_workloads()["ffn"], without=("m",)))
    _ABOUT = {"discriminator": "kind", "description": "the ops; presets are expanded"}
    Asked = Annotated[Union[tuple(_MODELS.values())], Field(discriminator="kind", description="the ops to tune")]  # noqa: UP007
    AnyKept = Annotated[Union[(*_ANSWERED, Chain, UnknownOps)], Field(**_ABOUT)]
    AnswerPair = Annotated[Union[(*_ANSWERED, Chain)], Field(**_ABOUT)]


def workload_of(pair: Pair) -> Workload:
    """The domain's view of a pair, or of a chain.

    Raises:
        InvalidInput: a matrix is too large for 32-bit indices, or a chain's ops do not fit together.
    """
    try:
        return pair.to_workload()
    except InvalidInput as error:
        if pair.kind == CHAIN or error.field.partition(".")[0] in type(pair).model_fields:
            # The domain names the added tensor; the client only says whether there is one.
            field = error.field.replace(".residual_source", ".residual")
            field = _place_in(pair, field) if isinstance(pair, Chain) else field
            raise InvalidInput(f"pair.{field}", error.problem, error.remedy) from error
        # The domain's message names an op's matrix, but the client only knows the pair.
        raise InvalidInput("pair", f"{error.field}: {error.problem}", error.remedy) from error


def _place_in(chain: Chain, field: str) -> str:
    """A field of an op, which the domain finds by the op's name, as its place in the request: `up.k` as `ops.0.k`."""
    for place, op in enumerate(chain.ops):
        own = field.removeprefix(f"{getattr(op, 'name', None)}.")
        if own != field and own.partition(".")[0] in type(op).model_fields:
            return f"ops.{place}.{own}"
    return field


def pair_of(workload: Workload) -> Pair | UnknownOps:
    """Inverse of `workload_of`, except that a preset becomes its chain."""
    if workload.unknown_kinds:
        return UnknownOps.from_workload(workload)
    document = asked.pair_of(workload)
    return _MODELS[document["kind"]].model_validate(document)
