"""Ops whose kind has its own formula: the file ``formula`` of the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from tuner.core.problem.op_kinds import part_of
from tuner.packs.base_shape import is_product

Json = dict[str, Any]


class Formula(Protocol):
    """The inputs and outputs of one kind of op; all sizes are in its JSON."""

    def made(self, op: Json) -> tuple[int, int]:
        """Rows and columns of the op's output."""

    def operands(self, op: Json) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Roles and shapes of the op's inputs, by name."""

    def computed(self, torch: Any, op: Json, tensors: Mapping[str, Any], activated: Callable[[Any, str], Any]) -> Any:
        """The op's output, by PyTorch's own operators; `activated` takes sums and the name of an activation."""


def formula_of(op: Json) -> Formula | None:
    """The formula of an op's kind; None if it has none."""
    return None if is_product(op) else cast(Formula | None, part_of(op["op"], "formula"))
