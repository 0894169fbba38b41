"""Shapes with their own records in a pack's table: an op with its own launch, whose tensors are passed by role.

A kind of op defines one as `SHAPE` in its module ``pack_shape``.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from tuner.core.problem.op_kinds import op_kinds, part_of
from tuner.errors import InvalidInput
from tuner.packs.base_shape import BaseShape


class LaunchedShape(BaseShape, ABC):
    """The shape of one such op, with at most one product after it."""

    #: A record of the index.
    RECORD: ClassVar[struct.Struct]
    #: The fields of the op's JSON that differ between the rungs of a ladder.
    SIZES: ClassVar[tuple[str, ...]]

    dtype: str
    #: Columns of the product after it; 0 if there is none.
    d_out: int

    @staticmethod
    @abstractmethod
    def is_op(op: Mapping[str, Any]) -> bool:
        """Whether an op of a manifest's workload is of the kind."""

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> LaunchedShape:
        """The shape of a manifest's workload.

        Raises:
            InvalidInput: it is not such an op with at most one product after it.
        """
        problem = f"is of {', '.join(op['name'] for op in workload['ops'])}"
        raise InvalidInput(
            "workload", problem, "pass an op with operands for a call, with at most one product after it"
        )

    @staticmethod
    @abstractmethod
    def sizes_of(op: Mapping[str, Any]) -> tuple[int, int]:
        """For an op: sequences, and the longest context."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Columns of the op's rows."""

    @abstractmethod
    def figures(self, columns: int) -> tuple[Any, ...]:
        """The values of its record, from the dtype on; `columns` are the output columns."""


@cache
def launched_shapes() -> tuple[type[LaunchedShape], ...]:
    """Shapes of all kinds that define one."""
    return tuple(part.SHAPE for kind in op_kinds() if (part := part_of(kind, "pack.shape")))


def launched_shape_of(op: Mapping[str, Any]) -> type[LaunchedShape] | None:
    """The shape class for the kind of an op in a manifest's workload; None for products and for kinds without one."""
    return next((shape for shape in launched_shapes() if shape.is_op(op)), None)
