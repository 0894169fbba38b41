"""An op of an unknown kind, from another version or installation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import LaunchOp, Tensor


@dataclass(frozen=True, kw_only=True)
class UnknownOp(LaunchOp):
    """Keeps its JSON, so that its digest does not change and other installations can read it. It has no sizes."""

    KIND: ClassVar[str] = ""

    name: str
    #: The kind in its JSON, or an unknown need besides its kind; empty if its JSON has neither.
    kind: str
    #: Its JSON, with sorted keys.
    text: str

    @classmethod
    def of(cls, data: Mapping[str, Any], kind: str) -> Self:
        """Keeps the JSON of an op whose kind, or another need, is unknown."""
        return cls(name=str(data.get("name", kind)), kind=kind, text=json.dumps(data, sort_keys=True))

    @property
    def m(self) -> int:
        """1, since its rows are unknown."""
        return 1

    @property
    def c_columns(self) -> int:
        """1, since its columns are unknown."""
        return 1

    @property
    def reads(self) -> tuple[Read, ...]:
        """Nothing, since it is unknown."""
        return ()

    @property
    def num_flops(self) -> int:
        """Nothing, since it is unknown."""
        return 0

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """Nothing, since it is unknown."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """The stored JSON."""
        data: dict[str, Any] = json.loads(self.text)
        return data

    def describe(self, *, with_rows: bool = True) -> str:
        """Says that it is unknown."""
        return f"{self.name}, an op of the unknown kind {self.kind or 'none'}"
