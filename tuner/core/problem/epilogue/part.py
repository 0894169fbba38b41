"""What is asked of a part of an epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar, Protocol

from tuner.core.problem.activation import Activation
from tuner.core.problem.dataflow import Read
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op import Tensor
from tuner.core.problem.rotary import Rotary

#: Of one element of a row scale, or of sums of squares, which are fp32 whatever the element type.
ROW_SCALE_BYTES = 4
#: Where a rule is broken: the field, what is wrong, what would be right.
Broken = tuple[str, str, str]


class Product(Protocol):
    """A product, as its epilogue sees it: `GemmOp` says what the fields are."""

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


class Part(ABC):
    """One step. It has no state: what an op asks of it lies in the op's fields."""

    #: The op's field that has it.
    field: ClassVar[str]
    #: Rows of W behind one column of C.
    rows_per_column: ClassVar[int] = 1
    #: Whether each row of the sums has a factor by it.
    scales_rows: ClassVar[bool] = False
    #: Names of the op's own tensors that belong to it, there or not.
    own_names: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def is_in(self, op: Product) -> bool:
        """Whether an op has it."""

    def broken(self, op: Product) -> list[Broken]:
        """What of the op's fields does not go together, as far as it is this part's."""
        return []

    def reads(self, op: Product) -> tuple[Read, ...]:
        """Tensors that the op names for it."""
        return ()

    def tensors(self, op: Product, dtype: Dtype) -> tuple[Tensor, ...]:
        """All that it reads, or changes in place."""
        return ()

    def num_bytes(self, op: Product, dtype: Dtype) -> int:
        """What it reads in a launch, wherever that comes from."""
        return 0

    def own_bytes(self, op: Product, dtype: Dtype, written: Collection[str]) -> int:
        """What of that no op has written, and no other tensor of the workload is; `written` are outputs of ops."""
        return self.num_bytes(op, dtype)
