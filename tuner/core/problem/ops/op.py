"""What the domain asks of an op of any kind. A kind is a class here, and its files; nothing outside names one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tuner.core.problem.dtype import ELEMENTS, Dtype
from tuner.core.problem.ops.codec import fields_from_json, fields_of, fields_to_json, hints_of, is_needed
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.kv_cache import WrittenCache

#: Rows and columns of a tile, about.
TILE = 128


class Role(StrEnum):
    """What a tensor is to an op."""

    #: Given by the caller, or by an earlier op.
    INPUT = "input"
    #: The same at every launch, and cold when a timed one begins.
    WEIGHT = "weight"
    #: Written whole.
    OUTPUT = "output"
    #: Kept between launches: read, or changed in place.
    CACHE = "cache"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of an op: one that it names, or its own."""

    #: An op's name, an input's, or ``<op>.<operand>``.
    name: str
    shape: tuple[int, ...]
    #: One of `ELEMENTS`.
    dtype: str
    role: Role
    #: The tensor of factors that its elements are multiplied by; empty for none.
    scale: str = ""
    #: Of integers that a launch brings: the least and the most that an element may be.
    range: tuple[int, int] | None = None
    #: Whether it may be read before the launch in front has ended.
    is_early: bool = False

    @property
    def num_elements(self) -> int:
        """Of the whole tensor."""
        return prod(self.shape)

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """As a matrix: its last dimension is columns."""
        return self.num_elements // self.shape[-1], self.shape[-1]

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor."""
        return self.num_elements * ELEMENTS[self.dtype].size_bytes


def weight(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """One that is there before any launch."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.WEIGHT, is_early=True)


def given(name: str, shape: tuple[int, ...], dtype: str, *, range: tuple[int, int] | None = None) -> Tensor:
    """An input, or an earlier op's output; of integers with the least and the most that one may be."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.INPUT, range=range)


def cache(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """One that is kept between launches."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.CACHE)


def output(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """One that is written whole."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.OUTPUT)


@dataclass(frozen=True, kw_only=True)
class OpWords:
    """An op in a table of its chain's ops."""

    #: What it makes of what, in sizes.
    sizes: str
    #: What it works on.
    reads: str
    #: What it reads, by the field that names it.
    named: Mapping[str, str]
    #: What its rows are normed by, what is added, and the function of its elements; empty for none.
    norm: str = ""
    adds: str = ""
    function: str = ""


class Op(ABC):
    """An op of a workload: a frozen dataclass, which names the tensor that it writes.

    Its output is a matrix for those that read it, `m` rows of `c_columns` elements. A field's ``doc`` in its metadata
    is what clients are told of it.
    """

    #: What its JSON calls the kind.
    KIND: ClassVar[str]
    #: Fields of its JSON that may differ between workloads whose results are compared, by the distance of `sizes`.
    FREE: ClassVar[tuple[str, ...]] = ("m",)
    #: Those of them that may differ between chains.
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = ("m",)

    #: Whether a kernel that was made for this many rows runs for fewer, as a ladder of kernels needs it.
    SERVES_FEWER_ROWS: ClassVar[bool] = False

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Whether the output leaves the chain, though an op of it reads it.
    is_output: bool = False

    if TYPE_CHECKING:  # a field of a dataclass would have it as its default

        @property
        def m(self) -> int:
            """Rows of the output."""

    @property
    @abstractmethod
    def c_columns(self) -> int:
        """Elements of a row of the output."""

    @property
    def result_columns(self) -> int:
        """Elements of a row of all that it makes: what goes to a cache is more than the output."""
        return self.c_columns

    def stored_in(self, dtype: Dtype) -> Dtype:
        """The element type of its output, of a workload of that type."""
        return dtype

    @property
    def made(self) -> tuple[Tensor, ...]:
        """Tensors beside its output that later ops may read."""
        return ()

    @property
    def changed(self) -> tuple[str, ...]:
        """Tensors that it names and changes in place."""
        kept = (one.name for one in self.tensors(Dtype.FP16) if one.role is Role.CACHE)
        return tuple(name for name in kept if name in self.read_names)

    @property
    @abstractmethod
    def reads(self) -> tuple[Read, ...]:
        """Each tensor that it names."""

    @property
    def read_names(self) -> tuple[str, ...]:
        """The names of those."""
        return tuple(read.tensor for read in self.reads)

    @abstractmethod
    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """All that it reads and writes, its output last, in a workload of that element type."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of tensors of its own."""
        own = (tensor.name for tensor in self.tensors(Dtype.FP16))
        return tuple(name for name in own if name != self.name and name not in self.read_names)

    @property
    @abstractmethod
    def num_flops(self) -> int:
        """Multiplications and additions of a timed launch."""

    def weight_bytes(self, dtype: Dtype) -> int:
        """Bytes of the weights that rotate between timed launches."""
        return sum(tensor.num_bytes for tensor in self.tensors(dtype) if tensor.role is Role.WEIGHT)

    @property
    def cache_bytes(self) -> int:
        """Bytes of caches that a timed launch has to read."""
        return 0

    def own_bytes(self, dtype: Dtype, written: Collection[str]) -> int:
        """Bytes that a timed launch reads beside weights, caches, and what the op names; `written` are the names of all
        ops of the workload."""
        return sum(
            tensor.num_bytes
            for tensor in self.tensors(dtype)
            if tensor.role is Role.INPUT and tensor.name not in self.read_names
        )

    @property
    def has_cache(self) -> bool:
        """Whether tensors of its own are kept between launches."""
        return any(tensor.role is Role.CACHE for tensor in self.tensors(Dtype.FP16))

    @property
    def written_cache(self) -> WrittenCache | None:
        """The cache of keys and values that it writes to, beside its output; None for none."""
        return None

    @property
    def sizes(self) -> tuple[int, ...]:
        """By which a near shape is found: factors between them say how far two are apart."""
        return tuple(getattr(self, name) for name in self.FREE)

    @property
    def ladder_key(self) -> tuple[int, ...]:
        """Of a launch op: with another key its kernel, or its plan, is another, though all that was chosen is the
        same."""
        return self.sizes

    @property
    def num_tiles(self) -> int:
        """About how many tasks there are: what a search can deal with."""
        return -(-self.m // TILE) * -(-self.c_columns // TILE)

    def check_shared(self, ops: Sequence[Op]) -> None:  # noqa: B027  # most share nothing
        """Whether what it shares with another op of a workload, a cache, is the same for both. It is asked before
        anything is known of who reads whom.

        Raises:
            InvalidInput: what would be right.
        """

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:  # noqa: B027  # most may stand anywhere
        """Whether it may stand where it does, among a workload's ops in topological order.

        Raises:
            InvalidInput: what would be right.
        """

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse. The element type is the workload's."""
        return {"op": self.KIND, **fields_to_json(self)}

    def to_job_json(self) -> dict[str, Any]:
        """The same as a job has it."""
        return self.to_json()

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs beside its kind of what packages bring, as `OpKind.extras` calls it."""
        return ()

    @classmethod
    def unknown_in(cls, data: Mapping[str, Any]) -> str:
        """What an op's JSON needs of that and nobody here brings; empty for nothing."""
        return ""

    @classmethod
    def from_json(cls, data: dict[str, Any], dtype: Dtype) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a field is unknown, is missing, or is out of its range.
        """
        return fields_from_json(cls, {name: value for name, value in data.items() if name != "op"})

    @classmethod
    def json_hints(cls) -> dict[str, tuple[Any, bool]]:
        """Of its JSON each key but the kind's: the type of the value, and whether it must be there."""
        hints = hints_of(cls)
        return {one.name: (hints[one.name], is_needed(one)) for one in fields_of(cls)}

    def describe(self, *, with_rows: bool = True) -> str:
        """A few words: what it makes of what is in front of it."""
        return f"{self.KIND} {self.c_columns}"

    def words(self) -> OpWords:
        """Its row in a table of a chain's ops."""
        named = {read.field: read.tensor for read in self.reads}
        return OpWords(sizes=self.describe(), reads=next(iter(self.read_names), ""), named=named)

    def place_of(self, row: int, column: int) -> str:
        """What an element of the output belongs to, in words; empty where there is more to say of its tile."""
        return ""

    def column_of_tiles(self, column: int) -> int:
        """The column in which tiles count an element of a row of all that it makes."""
        return column

    @classmethod
    def extras(cls, ops: Sequence[Self]) -> list[str]:
        """What several of the kind do beside, in words behind the sizes of all."""
        return []


class LaunchOp(Op):
    """An op that has launches of its own: for the plans of others its output is an input."""
