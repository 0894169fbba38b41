"""What a pack holds of decoder layers: an attention with products on both sides, or with more behind than a plain one.

A layer's shape is its workload without sequences and contexts. Its table is that of an attention: for each number of
sequences and longest context a kernel or the library. A launch is given its tensors by the names of the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner.core.problem.attention_op import ATTENTION
from tuner.errors import InvalidInput

from .attention import AttentionShape, Table, check_table, is_plain_call
from .contents import Kernel

Json = dict[str, Any]
#: Of a product, for people.
_OPTIONS = ("norm", "row_scale", "bias", "gated", "rotary", "residual")
#: Of an attention, and of a cache that a product writes to: what differs from line to line of a table. How long the
#: contexts were that were timed is no matter of the shape.
_SIZES = ("sequences", "max_length", "lengths")


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """The ops of a layer, without rows, sequences and contexts."""

    #: ``fp16`` or ``bf16``.
    dtype: str
    #: Of the ops, in order, as a manifest's workload has them: one line of JSON with sorted keys.
    ops_json: str

    @classmethod
    def of_workload(cls, workload: Mapping[str, Any]) -> LayerShape:
        """That of a manifest's workload.

        Raises:
            InvalidInput: it has no attention, more than one, or one that an attention's own table has a place for.
        """
        attentions = [op for op in workload["ops"] if op.get("op") == ATTENTION]
        if len(attentions) != 1:
            problem = f"has {len(attentions)} attentions"
            remedy = "give products around one attention, or an FFN; else take its artifact, as `load_artifact` runs it"
            raise InvalidInput("workload", problem, remedy)
        if is_plain_call(workload):
            problem = "is an attention with at most one plain product behind it"
            raise InvalidInput("workload", problem, "give it among the attentions")
        ops = [_without_sizes(op) for op in workload["ops"]]
        return cls(dtype=workload.get("dtype", "fp16"), ops_json=json.dumps(ops, sort_keys=True))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LayerShape:
        """Inverse of `to_json`."""
        return cls(dtype=data["dtype"], ops_json=json.dumps(data["ops"], sort_keys=True))

    def to_json(self) -> Json:
        """A dict of plain JSON values."""
        return {"dtype": self.dtype, "ops": self.ops}

    @property
    def ops(self) -> list[Json]:
        """In order; new at each call."""
        found: list[Json] = json.loads(self.ops_json)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Of the ops."""
        return tuple(op["name"] for op in self.ops)

    @property
    def num_in_front(self) -> int:
        """Products in front of the attention."""
        return next(index for index, op in enumerate(self.ops) if op.get("op") == ATTENTION)

    @property
    def d_in(self) -> int:
        """Columns of what the first op reads."""
        first = self.ops[0]
        return int(self._attended_columns if first.get("op") == ATTENTION else first["k"])

    @property
    def d_out(self) -> int:
        """Columns of what the last op makes; of a product that is turned the queries'."""
        last = self.ops[-1]
        if last.get("op") == ATTENTION:
            return self._attended_columns
        turned = last.get("rotary")
        return int(turned["heads"] * turned["head_dim"] if turned else last["n"])

    @cached_property
    def attention(self) -> AttentionShape:
        """The attention in it, without the product behind it."""
        op = self.ops[self.num_in_front]
        alone = {**op, "sequences": 1, "max_length": 1}
        return AttentionShape.of_workload({"dtype": self.dtype, "ops": [{**alone, "source": "q"}]})

    @property
    def _attended_columns(self) -> int:
        return self.attention.heads * self.attention.head_dim

    def __str__(self) -> str:
        attention = str(self.attention).partition(", ")[2]
        return f"{self.dtype} {self.d_in} -> {' -> '.join(map(_words, self.ops))}: {attention}"


@dataclass(frozen=True, kw_only=True)
class LayerEntry(Table):
    """A layer's table."""

    shape: LayerShape


def check_layers(entries: tuple[LayerEntry, ...]) -> None:
    """Whether a pack can hold these tables.

    Raises:
        InvalidInput: a shape is there twice, a table says two things, or a kernel is of another shape.
    """
    shapes = [entry.shape for entry in entries]
    if len(set(shapes)) < len(shapes):
        raise InvalidInput("layers", "a shape is there twice", "give each shape one table")
    for entry in entries:
        check_table("layers", str(entry.shape), entry.rungs)
        for rung in entry.rungs:
            if rung.kernel is not None:
                _check_shape(entry.shape, rung.kernel)


def _check_shape(shape: LayerShape, kernel: Kernel) -> None:
    if (found := LayerShape.of_workload(kernel.manifest["workload"])) != shape:
        problem = f"{shape}: {kernel.digest[:12]} computes {found}"
        raise InvalidInput("kernel", problem, "give the kernel of this shape")


def _words(op: Json) -> str:
    """An op's name, columns and options."""
    if op.get("op") == ATTENTION:
        return str(op["name"])
    columns = 2 * op["n"] if op.get("rotary") else op["n"]
    activation = [] if op["activation"] == "identity" else [op["activation"]]
    return " ".join([op["name"], str(columns), *(name for name in _OPTIONS if op.get(name)), *activation])


def _without_sizes(op: Mapping[str, Any]) -> Json:
    """Of an op, what all lines of a table have."""
    if op.get("op") == ATTENTION:
        return {name: value for name, value in op.items() if name not in _SIZES}
    found = {name: value for name, value in op.items() if name != "m"}
    if turned := op.get("rotary"):
        found["rotary"] = {name: value for name, value in turned.items() if name not in _SIZES}
    return found
