"""The interface of ops of any kind. A kind is a class and its files; code outside its folder never refers to a specific
kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tuner.core.problem.dtype import ELEMENTS, INT32, Dtype
from tuner.core.problem.ops.codec import fields_from_json, fields_of, fields_to_json, hints_of, is_needed
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.kv_cache import WrittenCache

#: Approximate rows and columns of a tile.
TILE = 128
#: Maximum dimensions of a tensor, as in packs and in the C API.
MAX_DIMENSIONS = 4


class Role(StrEnum):
    """The role of a tensor for an op."""

    #: Given by the caller, or by an earlier op.
    INPUT = "input"
    #: The same at every launch, and cold when a timed launch begins.
    WEIGHT = "weight"
    #: Written completely.
    OUTPUT = "output"
    #: Kept between launches: read, or changed in place.
    CACHE = "cache"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of an op: one that it names, or one that belongs to it."""

    #: An op's name, an input's, or ``<op>.<operand>``.
    name: str
    shape: tuple[int, ...]
    #: One of `ELEMENTS`.
    dtype: str
    role: Role
    #: The tensor of factors for its elements; empty if there is none.
    scale: str = ""
    #: For integers passed at launch: the minimum and maximum of an element.
    range: tuple[int, int] | None = None
    #: Whether it may be read before the previous launch has ended.
    is_early: bool = False

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return prod(self.shape)

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """The shape as a matrix, whose columns are the last dimension."""
        return self.num_elements // self.shape[-1], self.shape[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.num_elements * ELEMENTS[self.dtype].size_bytes


def form_problem(tensor: Tensor) -> str:
    """Why manifests and packs cannot describe a tensor; empty if they can."""
    sizes = tensor.shape if isinstance(tensor.shape, tuple) else ()
    if not 1 <= len(sizes) <= MAX_DIMENSIONS:
        return f"has the shape {tensor.shape}: use a tuple of 1 to {MAX_DIMENSIONS} sizes"
    if any(isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31 for size in sizes):
        return f"has the shape {tensor.shape}: sizes are integers from 1 to {2**31 - 1}"
    if tensor.dtype not in ELEMENTS:
        return f"has elements of {tensor.dtype!r}: use one of {', '.join(ELEMENTS)}"
    return ""


def range_problem(tensor: Tensor, *, is_written: bool) -> str:
    """Why trials cannot draw elements from its range; empty if they can. `is_written` means that an op writes them."""
    range_, is_of_integers = tensor.range, tensor.dtype == INT32.name
    if range_ is None:
        is_drawn = is_of_integers and not is_written and tensor.role in (Role.INPUT, Role.WEIGHT)
        return "has no range from which to draw integers" if is_drawn else ""
    if not is_of_integers:
        return f"has the range {range_}, but elements of {tensor.dtype}"
    if len(range_) != 2 or any(isinstance(one, bool) or not isinstance(one, int) for one in range_):
        return f"has the range {range_}, which is not two integers"
    if not -(2**31) <= range_[0] <= range_[1] < 2**31:
        return (
            f"has the range {range_}, which contains no int32"
            if range_[0] > range_[1]
            else f"has the range {range_}, beyond int32"
        )
    return ""


def weight(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor that exists before any launch."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.WEIGHT, is_early=True)


def given(name: str, shape: tuple[int, ...], dtype: str, *, range: tuple[int, int] | None = None) -> Tensor:
    """An input, or an earlier op's output; for integers with the minimum and maximum."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.INPUT, range=range)


def cache(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor that is kept between launches."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.CACHE)


def output(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor that is written completely."""
    return Tensor(name=name, shape=shape, dtype=dtype, role=Role.OUTPUT)


@dataclass(frozen=True, kw_only=True)
class OpWords:
    """An op in a table of its chain's ops."""

    #: Its operation, with sizes.
    sizes: str
    #: Its operand.
    reads: str
    #: What it reads, by the field that names it.
    named: Mapping[str, str]
    #: What normalizes its rows, what is added, and its elementwise function; empty if there is none.
    norm: str = ""
    adds: str = ""
    function: str = ""


class Op(ABC):
    """An op of a workload: a frozen dataclass with the name of the tensor that it writes.

    Readers see its output as a matrix of `m` rows of `c_columns` elements. The ``doc`` in a field's metadata is the
    description for clients.
    """

    #: Its kind's name in JSON.
    KIND: ClassVar[str]
    #: JSON fields in which workloads may differ and still be compared, by the distance of their `sizes`.
    FREE: ClassVar[tuple[str, ...]] = ("m",)
    #: The fields, among these, in which chains may differ.
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = ("m",)

    #: Whether a kernel for some number of rows also runs with fewer, as a ladder of kernels requires.
    SERVES_FEWER_ROWS: ClassVar[bool] = False
    #: The field that callers count instead of rows, e.g. ``images``, whose pixels are rows; None if rows are counted.
    BATCH_FIELD: ClassVar[str | None] = None

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    #: Whether the output is returned from the chain even if another op reads it.
    is_output: bool = False

    if TYPE_CHECKING:  # a dataclass field would use it as its default

        @property
        def m(self) -> int:
            """Rows of the output."""

    @property
    @abstractmethod
    def c_columns(self) -> int:
        """Elements per row of the output."""

    @property
    def batch_size(self) -> int | None:
        """The value of `BATCH_FIELD`; None if it has none."""
        return None if self.BATCH_FIELD is None else int(getattr(self, self.BATCH_FIELD))

    @property
    def result_columns(self) -> int:
        """Elements per row of everything that it writes: more than the output if it also writes to a cache."""
        return self.c_columns

    def stored_in(self, dtype: Dtype) -> Dtype:
        """The element type of its output, in a workload of type `dtype`."""
        return dtype

    @property
    def made(self) -> tuple[Tensor, ...]:
        """Its other outputs of the workload's element type: later ops may read them, too."""
        dtype = Dtype.FP16  # names and shapes are the same for all types
        others = (one for one in self.tensors(dtype) if one.role is Role.OUTPUT and one.name != self.name)
        return tuple(one for one in others if one.dtype == dtype)

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
        """The names of the tensors that it names."""
        return tuple(read.tensor for read in self.reads)

    @abstractmethod
    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """Everything that it reads and writes, its output last, in a workload of element type `dtype`."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors that belong to it."""
        others = {self.name, *self.read_names, *(one.name for one in self.made)}
        return tuple(one.name for one in self.tensors(Dtype.FP16) if one.name not in others)

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
        """Bytes that a timed launch reads besides weights, caches and the tensors that the op names; `written` are the
        names of all ops of the workload."""
        return sum(
            tensor.num_bytes
            for tensor in self.tensors(dtype)
            if tensor.role is Role.INPUT and tensor.name not in self.read_names
        )

    @property
    def has_cache(self) -> bool:
        """Whether some of its own tensors are kept between launches."""
        return any(tensor.role is Role.CACHE for tensor in self.tensors(Dtype.FP16))

    @property
    def written_cache(self) -> WrittenCache | None:
        """The KV cache that it writes to, besides its output; None if there is none."""
        return None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes for finding similar shapes: the distance between two shapes is measured by the ratios of their
        sizes."""
        return tuple(getattr(self, name) for name in self.FREE)

    @property
    def ladder_key(self) -> tuple[int, ...]:
        """For a launch op, a key of its kernel and plan: ops with different keys have different ones even if the
        schedule is the same.
        """
        return self.sizes

    @property
    def num_tiles(self) -> int:
        """Approximate number of tasks, which limits what a search can handle."""
        return -(-self.m // TILE) * -(-self.c_columns // TILE)

    def check_shared(self, ops: Sequence[Op]) -> None:  # noqa: B027  # most share nothing
        """Checks that state shared with another op of a workload, such as a cache, is the same for both. Called before
        the data flow is known.

        Raises:
            InvalidInput: they differ, with what would be valid.
        """

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:  # noqa: B027  # most may be anywhere
        """Checks that it may be at its position among a workload's ops in topological order.

        Raises:
            InvalidInput: it may not, with what would be valid.
        """

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse. The element type is that of the workload."""
        return {"op": self.KIND, **fields_to_json(self)}

    def to_job_json(self) -> dict[str, Any]:
        """The op's JSON in the form of a job."""
        return self.to_json()

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs from packages besides its kind, in the form of `OpKind.extras`."""
        return ()

    @classmethod
    def unknown_in(cls, data: Mapping[str, Any]) -> str:
        """The needs of an op's JSON that are not available here; empty if there are none."""
        return ""

    @classmethod
    def from_json(cls, data: dict[str, Any], dtype: Dtype) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a field is unknown, missing or out of range.
        """
        return fields_from_json(cls, {name: value for name, value in data.items() if name != "op"})

    @classmethod
    def json_hints(cls) -> dict[str, tuple[Any, bool]]:
        """For each JSON key except the kind's: the type of the value, and whether it is required."""
        hints = hints_of(cls)
        return {one.name: (hints[one.name], is_needed(one)) for one in fields_of(cls)}

    def describe(self, *, with_rows: bool = True) -> str:
        """A few words: what it computes from its inputs."""
        return f"{self.KIND} {self.c_columns}"

    def words(self) -> OpWords:
        """Its row in a table of a chain's ops."""
        named = {read.field: read.tensor for read in self.reads}
        return OpWords(sizes=self.describe(), reads=next(iter(self.read_names), ""), named=named)

    def place_of(self, row: int, column: int) -> str:
        """What an element of the output belongs to, as text; empty if its tile is enough."""
        return ""

    def column_of_tiles(self, column: int) -> int:
        """The column that tiles count for an element, given its column in a row of everything that the op writes."""
        return column

    @classmethod
    def extras(cls, ops: Sequence[Self]) -> list[str]:
        """What several ops of the kind also do, as text that follows the sizes of all."""
        return []


class LaunchOp(Op):
    """An op with its own launches: for the plans of other ops, its output is an input."""
