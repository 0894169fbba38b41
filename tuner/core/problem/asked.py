"""What a job may be asked for: ways to spell a workload, and an op of a chain, each by the fields of a dataclass.

Options of the command line, models of requests, parameters of queries, the page of a new job and typed documents follow
from these fields. A kind of op brings its own in a file `asked` beside its `op`: `WORKLOADS`, and `OP`. One that brings
none is asked for by the fields of its ops.
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
#: Bounds of a size of a matrix, as metadata of a field.
SIZE = MappingProxyType({"ge": 1, "le": MAX_ELEMENTS})
COUNT = MappingProxyType({"ge": 1})
#: The way to spell a workload op by op, which is of no kind.
CHAIN = str(WorkloadKind.CHAIN)
#: Names that no kind's ways may have: what a server answers of an op that it does not know is called so.
_TAKEN = (CHAIN, "unknown")
_MOST_DIGITS = 10
#: Parameters of a query, and options of commands, beside those that spell a workload.
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
    """A field with what clients are told of it.

    Args:
        doc: what it is, in words.
        default: its value where nothing is said.
        bounds: of its value: `ge`, `le`, ..., or `choices`; of one that is true or false `off`, what its option is
            called for false, if not `--no-` and its name; for the page of a new job `label`, and
            the `example` that it begins with.
    """
    return field(default=default, metadata={"doc": doc, **bounds})


class Example(NamedTuple):
    """Of a request."""

    summary: str
    fields: Json


class AskedWorkload(ABC):
    """A way to spell a workload: a frozen dataclass, whose name is that of its JSON schema."""

    #: What its JSON has as `kind`, and the command line as the name of a command.
    KIND: ClassVar[str]
    #: A few words for lists.
    SUMMARY: ClassVar[str]
    #: What the page of a new job calls it, with the fields that each choice sets; empty for one choice of its name.
    CHOICES: ClassVar[Mapping[str, Json]] = MappingProxyType({})
    #: For the documents of the API, by name.
    EXAMPLES: ClassVar[Mapping[str, Example]] = MappingProxyType({})

    #: Fields that a model gives on the page of a new job, where one is chosen: what `of_model` has.
    by_model: ClassVar[tuple[str, ...]] = ()

    #: Element type of every tensor; sums are fp32. None where other fields say it.
    dtype: Dtype | None

    @classmethod
    def of_model(cls, model: str, tp: int) -> Json:
        """The fields `by_model`, of a model's layer on one of `tp` ranks.

        Raises:
            InvalidInput: the model is unknown, or cannot be shared so.
        """
        return {}

    @abstractmethod
    def to_workload(self) -> Workload:
        """The ops.

        Raises:
            InvalidInput: names the field that is wrong, or an op's matrix that is too large.
        """

    @classmethod
    def of(cls, workload: Workload) -> Self | None:
        """The workload as answers spell it; None where they spell it otherwise."""
        return None


class AskedOp(ABC):
    """An op of a chain, whose rows and element type are the chain's: a frozen dataclass."""

    #: Whether its own fields say how many rows it has, whatever those of others.
    HAS_OWN_ROWS: ClassVar[bool] = False

    #: Unique name of the op, and of the tensor that it writes.
    name: str

    @abstractmethod
    def to_op(self, m: int, dtype: Dtype) -> Op:
        """The op.

        Raises:
            InvalidInput: names what is wrong with a field, behind the op's name.
        """

    @classmethod
    @abstractmethod
    def of(cls, op: Any) -> Self:
        """Inverse of `to_op`."""


class _ByFields(AskedOp):
    """An op whose kind says nothing of it but its fields."""

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
    """One op by its fields, called as its kind is."""

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
        raise InvalidInput("m", f"is {m}, but {name} has {made.m} rows", f"give {made.m}")
    return made


def is_listed(hint: Any) -> bool:
    """Whether a field is several numbers, which an option or a parameter of a query has with commas between."""
    return is_dataclass(hint) or get_origin(hint) is tuple


def names_in(hint: Any) -> tuple[str, ...]:
    """Of a field that is several numbers: their names, in order."""
    return tuple(one.name for one in fields(hint)) if is_dataclass(hint) else ("number", "...")


def listed(name: str, hint: Any, value: Any) -> Any:
    """`16,4096,4096` as JSON has the field of that name; what is no list as it is.

    Raises:
        InvalidInput: it is none of whole numbers, or has more or fewer than there are names.
    """
    if not is_listed(hint) or not isinstance(value, str):
        return value
    texts, names = value.split(","), names_in(hint)
    if not all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in texts):
        raise InvalidInput(name, f"{value!r} is not a list of whole numbers", f"give {','.join(names)}")
    if not is_dataclass(hint):
        return [int(text) for text in texts]
    if len(texts) != len(names):
        raise InvalidInput(name, f"{value!r} has {len(texts)} numbers", f"give {','.join(names)}")
    return {one: int(text) for one, text in zip(names, texts, strict=True)}


@cache
def parameter_names(one: type[AskedWorkload]) -> Mapping[str, str]:
    """What queries and commands call each field but the element type, by the field's name: as it is, unless that means
    something else there."""
    names = [each.name for each in fields_of(one) if each.name != "dtype"]
    return {name: f"{one.KIND.replace('-', '_')}_{name}" if name in _RESERVED else name for name in names}


def document_of(one: type[AskedWorkload], parameters: Json) -> dict[str, Any]:
    """The document that a query's parameters spell; others than a kind's own are left out.

    Raises:
        InvalidInput: what should be several numbers is none.
    """
    hints = hints_of(one)
    called = {**parameter_names(one), "dtype": "dtype"}
    given = {field: name for field, name in called.items() if parameters.get(name) is not None}
    return {"kind": one.KIND, **{field: listed(name, hints[field], parameters[name]) for field, name in given.items()}}


@cache
def asked_op(kind: str) -> type[AskedOp]:
    """How an op of a kind is spelled in a chain."""
    own: type[AskedOp] | None = getattr(part_of(kind, "asked"), "OP", None)
    op = op_kinds()[kind].op
    return own or _derived(f"Chain{_title(kind)}", _ByFields, op, op.__doc__, ("m",))


@cache
def asked_workloads() -> Mapping[str, type[AskedWorkload]]:
    """All ways to spell a workload but the chain, by name: first those of the kind that JSON does not name, then of the
    program's others, then of packages."""
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
    """A dataclass of the fields of an op."""
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


def op_of(data: Json, m: int, dtype: Dtype) -> Op:
    """An op of a chain, as a client spells it.

    Raises:
        InvalidInput: a field is unknown, is missing, or is out of its range; or the kind is not known here.
    """
    name = data.get("op")
    kind = next((one for one in op_kinds().values() if (one.is_unnamed if name is None else one.name == name)), None)
    if kind is None:
        known = " or ".join(repr(one.name) for one in op_kinds().values() if not one.is_unnamed)
        raise InvalidInput("op", f"{name!r} is not a known kind", f"use {known}, or leave it out for a product")
    return fields_from_json(asked_op(kind.name), {key: data[key] for key in data if key != "op"}).to_op(m, dtype)


def workload_of(pair: Json) -> Workload:
    """The workload that a document spells, as `POST /jobs` takes it as `pair`.

    Raises:
        InvalidInput: a field is unknown, is missing, or is out of its range.
        KeyError, TypeError, ValueError, AttributeError: it is no such document.
    """
    given = dict(pair)
    kind = given.pop("kind")
    if kind == CHAIN:
        dtype = Dtype(given.get("dtype", Dtype.FP16))
        ops = tuple(op_of(one, given["m"], dtype) for one in given["ops"])
        if ops and given["m"] not in (rows := list(dict.fromkeys(op.m for op in ops))):
            remedy = f"give {' or '.join(map(str, rows))}"
            raise InvalidInput("m", f"is {given['m']}, but no op has that many rows", remedy)
        return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=dtype)
    if kind not in asked_workloads():
        raise InvalidInput(
            "kind", f"there is no kind called {kind!r}", f"use one of {', '.join((*asked_workloads(), CHAIN))}"
        )
    return fields_from_json(asked_workloads()[kind], given).to_workload()


def pair_of(workload: Workload) -> dict[str, Any]:
    """A document that spells a workload of known kinds, as answers have it; inverse of `workload_of`."""
    for one in asked_workloads().values():
        if (found := one.of(workload)) is not None:
            return {"kind": one.KIND, **fields_to_json(found)}
    return chain_of(workload)


def chain_of(workload: Workload) -> dict[str, Any]:
    """The same op by op."""
    ops = [_op_document(op) for op in workload.ops]
    by_chain = (op.m for op in workload.ops if not asked_op(op.KIND).HAS_OWN_ROWS)
    rows = next(by_chain, workload.ops[0].m)
    return {"kind": CHAIN, "m": rows, "ops": ops, "dtype": str(workload.dtype)}


def _op_document(op: Op) -> dict[str, Any]:
    kind = op_kinds()[op.KIND]
    named = {} if kind.is_unnamed else {"op": kind.name}
    return {**named, **fields_to_json(asked_op(kind.name).of(op))}
