"""An op whose kind is not known here: another version, or another installation, knew it."""

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
    """Keeps what was said of it, so that its digest stays and whoever knows the kind can read it. It has no sizes."""

    KIND: ClassVar[str] = ""

    name: str
    #: As its JSON says, or what it needs beside its kind; empty where its JSON says nothing.
    kind: str
    #: Its JSON, by sorted keys.
    text: str

    @classmethod
    def of(cls, data: Mapping[str, Any], kind: str) -> Self:
        """Keeps the JSON of an op, of which that kind is not known, or what it needs beside."""
        return cls(name=str(data.get("name", kind)), kind=kind, text=json.dumps(data, sort_keys=True))

    @property
    def m(self) -> int:
        """One: nothing is known of its rows."""
        return 1

    @property
    def c_columns(self) -> int:
        """One: nothing is known of its columns."""
        return 1

    @property
    def reads(self) -> tuple[Read, ...]:
        """Nothing that is known."""
        return ()

    @property
    def num_flops(self) -> int:
        """None that are known."""
        return 0

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """None that are known."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """What was kept."""
        data: dict[str, Any] = json.loads(self.text)
        return data

    def describe(self, *, with_rows: bool = True) -> str:
        """That it is not known."""
        return f"{self.name}, an op of the unknown kind {self.kind or 'none'}"
