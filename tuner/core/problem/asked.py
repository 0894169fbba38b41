"""How requests describe a workload, or an op of a chain, as fields of a dataclass.

Command-line options, request models, query parameters, the page of a new job and typed documents are derived from these
fields. A kind of op defines its own descriptions in a module `asked` next to its `op`: `WORKLOADS`, and `OP`. A kind
without such a file is described by the fields of its ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_origin

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import OpKind, op_kinds, part_of
from tuner.core.problem.ops.codec import fields_from_json, fields_of, fields_to_json, hints_of
from tuner.core.problem.ops.op import Op
from tuner.core.problem.tile_op import MAX_ELEMENTS
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput

Json = Mapping[str, Any]
Asked = TypeVar("Asked")
#: Bounds of a matrix dimension, as field metadata.
SIZE = MappingProxyType({"ge": 1, "le": MAX_ELEMENTS})
COUNT = MappingProxyType({"ge": 1})
#: The description of a workload op by op, which belongs to no kind.
CHAIN = str(WorkloadKind.CHAIN)
#: Names that no kind may use, since a server's response about an unknown op uses them.
_TAKEN = (CHAIN, "unknown")
_MOST_DIGITS = 10
#: Query parameters and command options that do not describe a workload.
_RESERVED = frozenset(
    {
        *("kind", "preset", "target", "l2", "regime", "match", "max_distance"),
        *("gpu_name", "driver", "cuda", "kernel_version", "job", "batch", "key", "format", "output", "elsewhere"),
        *("accept_nearest", "accept_unfused", "even_if_slower", "energy_within", "torch_compile", "trials", "seconds"),
        *("patience", "seed", "priors", "reuse", "chain", "schedule", "sweep", "plan_kind", "priority", "project"),
        *("label", "deadline", "webhook", "idempotency_key", "watch", "json", "help"),
    }
)


def asked_field(doc: str, default: Any = MISSING, bounds: Json = MappingProxyType({})) -> Any:
    """A field with the text that clients see.

    Args:
        doc: its meaning, as text.
        default: the value if none is given.
        bounds: bounds of its value: `ge`, `le`, ..., or `choices`; for a boolean `off`, the option that sets it to
            false, if not `--no-` and its name; for the page of a new job `label`, and the initial `example`.
    """
    return field(default=default, metadata={"doc": doc, **bounds})


class Example(NamedTuple):
    """An example of a request."""

    summary: str
    fields: Json


class AskedWorkload(ABC):
    """A description of a workload: a frozen dataclass, whose name is that of its JSON schema."""

    #: Value of `kind` in its JSON, and the name of its command.
    KIND: ClassVar[str]
    #: A few words for lists.
    SUMMARY: ClassVar[str]
    #: Names on the page of a new job, each with the fields that it sets; empty for a single choice with its own name.
    CHOICES: ClassVar[Mapping[str, Json]] = MappingProxyType({})
    #: Examples for the API docs, by name.
    EXAMPLES: ClassVar[Mapping[str, Example]] = MappingProxyType({})

    #: Fields that a model sets on the page of a new job: those that `of_model` returns.
    by_model: ClassVar[tuple[str, ...]] = ()

    #: Element type of every tensor; sums are in fp32. None if other fields determine it.
    dtype: Dtype | None

    @classmethod
    def of_model(cls, model: str, tp: int) -> Json:
        """The values of the fields `by_model`, for a model's layer on one of `tp` ranks.

        Raises:
            InvalidInput: the model is unknown, or cannot be split over so many ranks.
        """
        return {}

    @abstractmethod
    def to_workload(self) -> Workload:
        """The ops.

        Raises:
            InvalidInput: a field is wrong, or an op's matrix is too large.
        """

    @classmethod
    def of(cls, workload: Workload) -> Self | None:
        """The workload's description in this form; None if responses describe it in a different form."""
        return None


class AskedOp(ABC):
    """An op of a chain, whose rows and element type are the chain's: a frozen dataclass."""

    #: Whether its own fields determine its number of rows, whatever the other ops are.
    HAS_OWN_ROWS: ClassVar[bool] = False

    #: Unique name of the op, and of the tensor that it writes.
    name: str

    @abstractmethod
    def to_op(self, m: int, dtype: Dtype) -> Op:
        """The op.

        Raises:
            InvalidInput: a field of the op is wrong.
        """

    @classmethod
    @abstractmethod
    def of(cls, op: Any) -> Self:
        """Inverse of `to_op`."""


class _ByFields(AskedOp):
    """An op of a kind that only defines its fields."""

    _op: ClassVar[type[Op]]

    def to_op(self, m: int, dtype: Dtype) -> Op:
        """The op."""
        return _op_of_fields(self._op, self.name, fields_to_json(self), m, dtype)

    @classmethod
    def of(cls, op: Op) -> Self:
        """Inverse of `to_op`."""
        named = {one.name for one in fields_of(cls)}
        return fields_from_json(cls, {name: value for name, value in op.to_json().items() if name in named})


class _AloneByFields(AskedWorkload):
    """A single op described by its fields, with the name of its kind."""

    _op: ClassVar[type[Op]]
    dtype: Dtype

    def to_workload(self) -> Workload:
        """The op."""
        data = fields_to_json(self)
        data.pop("dtype", None)
        op = _op_of_fields(self._op, self.KIND.replace("-", "_"), data, data.pop("m", None), self.dtype, is_alone=True)
        return Workload(kind=WorkloadKind.CHAIN, ops=(op,), dtype=self.dtype)


def _op_of_fields(op: type[Op], name: str, data: Json, m: int | None, dtype: Dtype, *, is_alone: bool = False) -> Op:
    rows = {"m": m} if m is not None and "m" in hints_of(op) else {}
    try:
        made = op.from_json({**data, **rows, "name": name}, dtype)
    except InvalidInput as error:
        raise InvalidInput(error.field if is_alone else f"{name}.{error.field}", error.problem, error.remedy) from error
    if m is not None and made.m != m:
        raise InvalidInput("m", f"is {m}, but {name} has {made.m} rows", f"use {made.m}")
    return made


def is_listed(hint: Any) -> bool:
    """Whether a field holds several numbers, which options and query parameters separate by commas."""
    return is_dataclass(hint) or get_origin(hint) is tuple


def names_in(hint: Any) -> tuple[str, ...]:
    """The names of the numbers that a listed field holds, in order."""
    return tuple(one.name for one in fields(hint)) if is_dataclass(hint) else ("number", "...")


def listed(name: str, hint: Any, value: Any) -> Any:
    """Converts `16,4096,4096` to the JSON value of the named field; anything but a list is returned unchanged.

    Raises:
        InvalidInput: the value is not a list of whole numbers, or has the wrong length.
    """
    if not is_listed(hint) or not isinstance(value, str):
        return value
    texts, names = value.split(","), names_in(hint)
    if not all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in texts):
        raise InvalidInput(name, f"{value!r} is not a list of whole numbers", f"use {','.join(names)}")
    if not is_dataclass(hint):
        return [int(text) for text in texts]
    if len(texts) != len(names):
        raise InvalidInput(name, f"{value!r} has {len(texts)} numbers", f"use {','.join(names)}")
    return {one: int(text) for one, text in zip(names, texts, strict=True)}


@cache
def parameter_names(one: type[AskedWorkload]) -> Mapping[str, str]:
    """By field name, what each field except the element type is called in queries and commands: the same, unless that
    name is already used there."""
    names = [each.name for each in fields_of(one) if each.name != "dtype"]
    return {name: f"{one.KIND.replace('-', '_')}_{name}" if name in _RESERVED else name for name in names}


def document_of(one: type[AskedWorkload], parameters: Json) -> dict[str, Any]:
    """The document that query parameters describe; parameters that do not belong to the kind are left out.

    Raises:
        InvalidInput: a list of numbers is malformed.
    """
    hints = hints_of(one)
    called = {**parameter_names(one), "dtype": "dtype"}
    given = {field: name for field, name in called.items() if parameters.get(name) is not None}
    return {"kind": one.KIND, **{field: listed(name, hints[field], parameters[name]) for field, name in given.items()}}


@cache
def asked_op(kind: str) -> type[AskedOp]:
    """The class that describes an op of a kind in a chain."""
    own: type[AskedOp] | None = getattr(part_of(kind, "asked"), "OP", None)
    op = op_kinds()[kind].op
    return own or _derived(f"Chain{_title(kind)}", _ByFields, op, op.__doc__, ("m",))


@cache
def asked_workloads() -> Mapping[str, type[AskedWorkload]]:
    """All descriptions of workloads except the chain, by name: first the unnamed kind's, then the program's others,
    then those of packages."""
    found: dict[str, type[AskedWorkload]] = {}
    for kind in sorted(op_kinds().values(), key=lambda one: not one.is_unnamed):
        own = getattr(part_of(kind.name, "asked"), "WORKLOADS", None)
        for one in _alone(kind) if own is None else own:
            if one.KIND not in _TAKEN:
                found.setdefault(one.KIND, one)
    return MappingProxyType(found)


def _alone(kind: OpKind) -> tuple[type[AskedWorkload], ...]:
    dtype = ("dtype", Dtype, asked_field("element type of every tensor; sums are fp32", Dtype.FP16))
    about = (kind.op.__doc__ or kind.name).strip().partition("\n")[0]
    made = _derived(_title(kind.name), _AloneByFields, kind.op, kind.op.__doc__, ("name", "is_output"), dtype)
    made.KIND, made.SUMMARY = kind.name, about
    return (made,)


def _title(kind: str) -> str:
    return kind.title().replace("_", "").replace("-", "")


def _derived(
    name: str, base: type[Asked], op: type[Op], doc: str | None, without: tuple[str, ...], *more: Any
) -> type[Asked]:
    """A dataclass with the fields of an op."""
    hints = hints_of(op)
    own = [(one.name, hints[one.name], _copy(one)) for one in fields_of(op) if one.name not in without]
    made = make_dataclass(name, [*own, *more], bases=(base,), frozen=True, kw_only=True, namespace={"_op": op})
    made.__doc__ = doc
    derived: type[Asked] = made
    return derived


def _copy(one: Field[Any]) -> Any:
    if one.default_factory is not MISSING:
        return field(default_factory=one.default_factory, metadata=one.metadata)
    return field(default=one.default, metadata=one.metadata)


def op_of(data: Json, m: int | None, dtype: Dtype) -> Op:
    """An op of a chain from a client's description; with `m` None, one whose own fields determine its rows.

    Raises:
        InvalidInput: a field is unknown, missing or out of range; or the kind is unknown.
    """
    name = data.get("op")
    kind = next((one for one in op_kinds().values() if (one.is_unnamed if name is None else one.name == name)), None)
    if kind is None:
        known = " or ".join(repr(one.name) for one in op_kinds().values() if not one.is_unnamed)
        raise InvalidInput("op", f"{name!r} is not a known kind", f"use {known}, or leave it out for a product")
    described = asked_op(kind.name)
    if m is None and not described.HAS_OWN_ROWS:
        raise InvalidInput("m", "is missing", f"add it: {data.get('name')} has that many rows")
    return fields_from_json(described, {key: data[key] for key in data if key != "op"}).to_op(m or 0, dtype)


def workload_of(pair: Json) -> Workload:
    """The workload that a document describes, in the form of `pair` in `POST /jobs`.

    Raises:
        InvalidInput: a field is unknown, missing or out of range.
        KeyError, TypeError, ValueError, AttributeError: the document is malformed.
    """
    given = dict(pair) if isinstance(pair, Mapping) else {}
    kind = given.pop("kind", None)
    if kind is None:
        raise InvalidInput("kind", "is missing", f"use one of {', '.join((*asked_workloads(), CHAIN))}")
    if kind == CHAIN:
        dtype = Dtype(given.get("dtype", Dtype.FP16))
        m = given.get("m")
        ops = tuple(op_of(one, m, dtype) for one in given["ops"])
        if ops and m is not None and m not in (rows := list(dict.fromkeys(op.m for op in ops))):
            remedy = f"use {' or '.join(map(str, rows))}"
            raise InvalidInput("m", f"is {m}, but no op has that many rows", remedy)
        return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=dtype)
    if kind not in asked_workloads():
        raise InvalidInput(
            "kind", f"there is no kind called {kind!r}", f"use one of {', '.join((*asked_workloads(), CHAIN))}"
        )
    return fields_from_json(asked_workloads()[kind], given).to_workload()


def pair_of(workload: Workload) -> dict[str, Any]:
    """The document that describes a workload of known kinds, as in responses; inverse of `workload_of`."""
    for one in asked_workloads().values():
        if (found := one.of(workload)) is not None:
            return {"kind": one.KIND, **fields_to_json(found)}
    return chain_of(workload)


def chain_of(workload: Workload) -> dict[str, Any]:
    """Same as `pair_of`, but always op by op."""
    ops = [_op_document(op) for op in workload.ops]
    by_chain = (op.m for op in workload.ops if not asked_op(op.KIND).HAS_OWN_ROWS)
    rows = next(by_chain, workload.ops[0].m)
    return {"kind": CHAIN, "m": rows, "ops": ops, "dtype": str(workload.dtype)}


def _op_document(op: Op) -> dict[str, Any]:
    kind = op_kinds()[op.KIND]
    named = {} if kind.is_unnamed else {"op": kind.name}
    return {**named, **fields_to_json(asked_op(kind.name).of(op))}
