"""The interface of a part of an epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.kv_cache import WrittenCache
from tuner.core.problem.ops.op import Op, Tensor
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.weights import WeightFormat

#: Bytes of one element of a row scale, or of sums of squares, which are fp32 for every element type.
ROW_SCALE_BYTES = 4
#: A violated rule: the field, the problem, and the remedy.
Broken = tuple[str, str, str]


class Stage(IntEnum):
    """When a part is applied."""

    #: To each sum; with a gate, to those of both halves.
    SUMS = 0
    #: To the elements of C, before additions.
    OUTPUT = 1
    #: To the final value, which is rounded and stored.
    RESULT = 2


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A field of the kernel's parameter that belongs to a part."""

    #: Appended to the op's name.
    name: str
    #: ``pointer`` or ``int32``.
    type: str = "pointer"
    #: Description in a manifest.
    meaning: str
    #: The tensor that a pointer refers to.
    tensor: str = ""
    #: Default of a number, which a launch may override.
    value: int | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that a tile reads for a part besides the sums: per row, per column of C, per element."""

    row: int = 0
    column: int = 0
    element: int = 0


class Product(Protocol):
    """A product as its epilogue sees it; its kind documents the fields."""

    @property
    def name(self) -> str: ...
    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def weight_rows(self) -> int: ...
    @property
    def activation(self) -> Activation: ...
    @property
    def bias(self) -> bool: ...
    @property
    def gated(self) -> bool: ...
    @property
    def residual(self) -> bool: ...
    @property
    def residual_source(self) -> str: ...
    @property
    def row_scale(self) -> bool: ...
    @property
    def norm(self) -> str: ...
    @property
    def eps(self) -> float: ...
    @property
    def rotary(self) -> Rotary | None: ...
    @property
    def epilogue(self) -> tuple[Any, ...]: ...
    @property
    def out_dtype(self) -> Dtype | None: ...
    @property
    def weights(self) -> WeightFormat | None: ...
    @property
    def source(self) -> str: ...
    @property
    def parts(self) -> tuple[Part, ...]: ...
    @property
    def written_cache(self) -> WrittenCache | None: ...


class Draws(Protocol):
    """Makes the tensors of a trial."""

    def normal(self, shape: tuple[int, ...], dtype: str = "") -> Any:
        """Elements of type `dtype`, by default the workload's."""

    def factors(self, shape: tuple[int, ...]) -> Any:
        """fp32 factors from 0.5 to 2: a model's factors are all near 1, so a wrong one would go unnoticed."""

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> Any:
        """int32 numbers from `least` to `most`."""

    def squares(self, name: str) -> Any:
        """fp32, the sums of squares of the rows of the input `name`; None if it is not an input."""


def drawn(tensor: Tensor, draws: Draws) -> Any:
    """A tensor for a trial: factors, integers of its range, or elements."""
    if tensor.dtype == "fp32":
        return draws.factors(tensor.shape)
    if tensor.range is not None:
        return draws.integers(tensor.shape, *tensor.range)
    return draws.normal(tensor.shape, tensor.dtype)


class Part(ABC):
    """One step of an epilogue. Its parameters are fields of the op or, for a package's part, its own fields."""

    #: The op's field that enables it.
    field: ClassVar[str]
    #: When it is applied; within one stage, the program's own come first.
    stage: ClassVar[Stage]
    #: Rows of W for one column of C.
    rows_per_column: ClassVar[int] = 1
    #: Names of these rows, for people.
    halves: ClassVar[str] = ""
    #: Whether it multiplies each row of the sums by a factor.
    scales_rows: ClassVar[bool] = False
    #: Whether tensor-core engines handle elements of the output's type in words of two, which requires 16 bits.
    is_of_words: ClassVar[bool] = False
    #: Names of the op's own tensors that belong to it, present or not.
    own_names: ClassVar[tuple[str, ...]] = ()
    #: The pointer of `OpArgs` that it reads; empty if there is none.
    slot: ClassVar[str] = ""
    #: Whether the thread that writes an output element has read the same element of this part's tensor before.
    is_read_first: ClassVar[bool] = False
    #: What a manifest says about ops with this part.
    meaning: ClassVar[str] = ""
    #: Whether it changes a cache in place; the measuring protocol preserves the cache, given where the part writes.
    changes_cache: ClassVar[bool] = False
    #: Whether its weights have deviation 1, so that sums are about as large as the product's factors.
    brings_size: ClassVar[bool] = False
    #: Whether a vendor's library applies it before its product.
    is_in_front: ClassVar[bool] = False
    #: The kernel of the measuring protocol that applies it after a vendor's product.
    library_kernel: ClassVar[str] = "tuner_epilogue"
    #: A mutation of the device code that a check of the results must detect: old and new text.
    planted: ClassVar[tuple[str, str]] = ("", "")

    @abstractmethod
    def is_in(self, op: Product) -> bool:
        """Whether an op has it."""

    @abstractmethod
    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """Applies it, in float64."""

    @abstractmethod
    def step(self, op: Product) -> str:
        """What it does, as text that continues the text of earlier parts."""

    def made(self, op: Product, sums: Sums, tensors: Tensors) -> Mapping[str, tuple[Any, Any]]:
        """The tensors that it writes besides the output, by name: values and their error before rounding, computed from
        those of the output."""
        return {}

    def broken(self, op: Product) -> list[Broken]:
        """The rules for this part that the op's fields violate."""
        return []

    def misplaced(self, op: Product, ops: Sequence[Op], dtype: Dtype) -> list[Broken]:
        """The rules for this part that the other ops of its workload, or their element type, violate."""
        return []

    def multiplied(self, op: Product, tensors: Tensors, xp: Any, a: Any, w: Any) -> tuple[Any, Any]:
        """A and W in float64 as they are multiplied, from their elements."""
        return a, w

    def step_reads(self, op: Product) -> tuple[str, ...]:
        """Tensors that a tile reads step by step, with columns for those of A."""
        return ()

    def reads(self, op: Product) -> tuple[Read, ...]:
        """Tensors that the op names for it."""
        return ()

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        """Everything that it reads or changes in place."""
        return ()

    def listed(self, op: Product, dtype: Dtype, cache: str) -> tuple[tuple[str, Tensor], ...]:
        """Its tensors in a manifest, with their roles; `cache` is the prefix of the cache that the op writes to."""
        return tuple((tensor.name.rpartition(".")[2], tensor) for tensor in self.tensors(op, dtype))

    def operands(self, op: Product) -> tuple[str, ...]:
        """Names of the part's tensors that belong to the op, or to a tensor that the op names."""
        return tuple(f"{op.name}.{name}" for name in self.own_names)

    def late_reads(self, op: Product) -> tuple[tuple[str, bool], ...]:
        """Tensors, possibly written by an op, that a tile reads after its last step, each with whether the tile reads
        whole rows or only the elements that it writes."""
        return ()

    def traffic(self, op: Product, dtype: Dtype) -> Traffic:
        """What a tile reads for it besides its sums."""
        return Traffic()

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        """Bytes that it reads in a launch, from anywhere."""
        return 0

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        """Bytes of `num_bytes` that are neither written by an op nor part of another tensor of the workload; `written`
        has the outputs of ops."""
        return self.num_bytes(op, dtype)

    def pointer(self, op: Product) -> str:
        """The tensor for its `slot`."""
        return f"{op.name}.{self.slot}"

    def pointers(self, op: Product) -> tuple[Argument, ...]:
        """Pointers of the op's arguments after those that every op has."""
        return ()

    def draw(self, op: Product, tensor: Tensor, draws: Draws) -> Any:
        """One of its tensors for a trial; None if the tensor does not belong to it."""
        return drawn(tensor, draws)

    def arguments(self, op: Product, cache: str) -> tuple[Argument, ...]:
        """Fields of the kernel's parameter after those that every op has; `cache` is the prefix of the cache that
        the op writes to."""
        return ()

    def constants(self, op_index: int, op: Product) -> str:
        """Constants for the device code about an op with this part, as a CUDA definition; empty if there are none."""
        return ""

    def is_in_library(self, op: Product) -> bool:
        """Whether a vendor's product applies this part and every part before it."""
        return False

    def likeness(self, op: Product) -> object:
        """Values that must be equal for two ops with this part to be similar."""
        return self.field

    def is_plain(self, op: Product) -> bool:
        """Whether it needs few registers on the device."""
        return False

    def latency_reads(self, op: Product) -> int:
        """Number of dependent reads that come before the stores, because they determine where to store."""
        return 0

    def words(self, op: Product) -> Mapping[str, str]:
        """Its contribution to an op's row in a table: as ``sizes``, ``norm``, ``adds`` or ``function``."""
        return {}

    def action(self, op: Product) -> str:
        """What it does in a chain's op besides reading tensors; empty if nothing."""
        return ""

    def torch(self, op: Product) -> str:
        """Why PyTorch cannot be called for this part; empty if it can."""
        return ""


#: The options of an op that does not set them, so that code can read an op's options without knowing its kind. A
#: process may know only one kind, since unpickling an op imports no other.
PLAIN: Mapping[str, Any] = MappingProxyType(
    {
        "activation": Activation.IDENTITY,
        "bias": False,
        "gated": False,
        "residual": False,
        "row_scale": False,
        "residual_source": "",
        "norm": "",
        "eps": 1e-5,
        "is_output": False,
        "rotary": None,
        "epilogue": (),
        "out_dtype": None,
        "weights": None,
    }
)
