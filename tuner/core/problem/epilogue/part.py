"""What is asked of a part of an epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.sums import Sums, Tensors
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.kv_cache import WrittenCache
from tuner.core.problem.ops.op import Tensor
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.weights import WeightFormat

#: Of one element of a row scale, or of sums of squares, which are fp32 whatever the element type.
ROW_SCALE_BYTES = 4
#: Where a rule is broken: the field, what is wrong, what would be right.
Broken = tuple[str, str, str]


class Stage(IntEnum):
    """When a part has its turn."""

    #: Of each sum: with a gate, of both halves.
    SUMS = 0
    #: Of the elements of C, without what is added.
    OUTPUT = 1
    #: Of what is rounded and stored.
    RESULT = 2


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A field of the kernel's parameter that is there for a part."""

    #: Behind the op's name.
    name: str
    #: ``pointer`` or ``int32``.
    type: str = "pointer"
    #: In a manifest.
    meaning: str
    #: What a pointer points to.
    tensor: str = ""
    #: Of a number, which a launch may say otherwise.
    value: int | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that a tile reads for a part beside the sums: for each row, for each column of C, for each element."""

    row: int = 0
    column: int = 0
    element: int = 0


class Product(Protocol):
    """A product, as its epilogue sees it; its kind says what the fields are."""

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
    def weights(self) -> WeightFormat | None: ...
    @property
    def source(self) -> str: ...
    @property
    def parts(self) -> tuple[Part, ...]: ...
    @property
    def written_cache(self) -> WrittenCache | None: ...


class Draws(Protocol):
    """What tensors of a trial are made of."""

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Elements of the workload's type."""

    def factors(self, shape: tuple[int, ...]) -> Any:
        """fp32, from 0.5 to 2: those of a model are all near 1, and a wrong one would not show."""

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> Any:
        """int32."""

    def squares(self, name: str) -> Any:
        """fp32, the sums of squares of an input's rows; None where that is no input."""


def drawn(tensor: Tensor, draws: Draws) -> Any:
    """A tensor for a trial: factors, integers of its range, or elements."""
    if tensor.dtype == "fp32":
        return draws.factors(tensor.shape)
    if tensor.range is not None:
        return draws.integers(tensor.shape, *tensor.range)
    return draws.normal(tensor.shape)


class Part(ABC):
    """One step. What an op asks of it lies in the op's fields, or of a package's part in its own."""

    #: The op's field that has it.
    field: ClassVar[str]
    #: When it has its turn; of one stage, those of the program come first.
    stage: ClassVar[Stage]
    #: Rows of W behind one column of C.
    rows_per_column: ClassVar[int] = 1
    #: What these are, for people.
    halves: ClassVar[str] = ""
    #: Whether each row of the sums has a factor by it.
    scales_rows: ClassVar[bool] = False
    #: Whether `wgmma` takes elements for it as words of two, which those of 16 bits alone are.
    is_of_words: ClassVar[bool] = False
    #: Names of the op's own tensors that belong to it, there or not.
    own_names: ClassVar[tuple[str, ...]] = ()
    #: The pointer of `OpArgs` that it reads, and what a manifest says of that; empty for none.
    slot: ClassVar[str] = ""
    #: Whether who writes an element of the output has read the same one of its tensor before.
    is_read_first: ClassVar[bool] = False
    #: What a manifest has to say of such ops.
    meaning: ClassVar[str] = ""
    #: Whether it changes a cache in place, which the measuring protocol keeps for it, with what says where.
    changes_cache: ClassVar[bool] = False
    #: Whether weights are of deviation 1, of which it makes sums that are about as large as what is multiplied.
    brings_size: ClassVar[bool] = False
    #: Whether a vendor's library does it before its product.
    is_in_front: ClassVar[bool] = False
    #: The kernel of the measuring protocol that does it behind a vendor's product.
    library_kernel: ClassVar[str] = "tuner_epilogue"
    #: A change of the device text that a check of the numbers must find: what stands there, and what instead.
    planted: ClassVar[tuple[str, str]] = ("", "")

    @abstractmethod
    def is_in(self, op: Product) -> bool:
        """Whether an op has it."""

    @abstractmethod
    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """What it does, in float64."""

    @abstractmethod
    def step(self, op: Product) -> str:
        """What it does, in words behind those of the parts in front of it."""

    def broken(self, op: Product) -> list[Broken]:
        """What of the op's fields does not go together, as far as it is this part's."""
        return []

    def reads(self, op: Product) -> tuple[Read, ...]:
        """Tensors that the op names for it."""
        return ()

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        """All that it reads, or changes in place."""
        return ()

    def listed(self, op: Product, dtype: Dtype, cache: str) -> tuple[tuple[str, Tensor], ...]:
        """Tensors of a manifest that are there for it, behind their roles; `cache` is in front of the names of the
        cache that the op writes to."""
        return tuple((tensor.name.rpartition(".")[2], tensor) for tensor in self.tensors(op, dtype))

    def operands(self, op: Product) -> tuple[str, ...]:
        """The names of those that are the op's own, or come with one that it names."""
        return tuple(f"{op.name}.{name}" for name in self.own_names)

    def late_reads(self, op: Product) -> tuple[tuple[str, bool], ...]:
        """Tensors that an op may have written, which a tile reads after its last step, and whether as whole rows; else
        it reads its own tile of them."""
        return ()

    def traffic(self, op: Product, dtype: Dtype) -> Traffic:
        """What a tile reads for it behind its sums."""
        return Traffic()

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        """What it reads in a launch, wherever that comes from."""
        return 0

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        """What of that no op has written, and no other tensor of the workload is; `written` are outputs of ops."""
        return self.num_bytes(op, dtype)

    def pointer(self, op: Product) -> str:
        """The tensor that its `slot` points to."""
        return f"{op.name}.{self.slot}"

    def pointers(self, op: Product) -> tuple[Argument, ...]:
        """Pointers of the op's arguments behind those that every op has."""
        return ()

    def draw(self, op: Product, tensor: Tensor, draws: Draws) -> Any:
        """A tensor of its own for a trial; None where it is none."""
        return drawn(tensor, draws)

    def arguments(self, op: Product, cache: str) -> tuple[Argument, ...]:
        """Fields of the kernel's parameter behind those that every op has; `cache` is in front of the names of the
        cache that the op writes to."""
        return ()

    def constants(self, op_index: int, op: Product) -> str:
        """What the device text has to know of the one op that has it, as a definition in CUDA; empty for nothing."""
        return ""

    def is_in_library(self, op: Product) -> bool:
        """Whether a vendor's product does it, and every part before it."""
        return False

    def likeness(self, op: Product) -> object:
        """What two ops that have it must share to be alike in it."""
        return self.field

    def is_plain(self, op: Product) -> bool:
        """Whether it takes few registers on the device."""
        return False

    def latency_reads(self, op: Product) -> int:
        """Reads one after the other in front of the stores, which say where these go."""
        return 0

    def words(self, op: Product) -> Mapping[str, str]:
        """Its share of an op's row in a table: by ``sizes``, ``norm``, ``adds`` or ``function``."""
        return {}

    def action(self, op: Product) -> str:
        """Of a chain's op, what it does beside reading tensors; empty for nothing."""
        return ""

    def torch(self, op: Product) -> str:
        """Why PyTorch has no call for it; empty where it has one."""
        return ""


#: What an op does not do that does not ask for it: who reads an op's options need not know its kind. A process may know
#: one kind alone, since whoever unpickles an op imports no other.
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
