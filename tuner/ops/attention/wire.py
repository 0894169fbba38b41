"""Decode attention as a client gives it, as an op of a chain."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from tuner.core.problem.dtype import Dtype
from tuner.errors import InvalidInput
from tuner.ops.attention.form import form_to_json
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.requests import AttentionHeads
from tuner.wire.fields import Name


class ChainAttention(AttentionHeads):
    """Out of decode attention: a row for each new token of each sequence, the heads side by side."""

    op: Literal["attention"] = Field(description="that it is one; a product says nothing")
    name: Name = Field(description="of the op, and of the tensor that it writes")
    source: Name = Field(default="q", description="the queries: an earlier op, or any other name for an input")

    def to_op(self, m: int, dtype: Dtype) -> AttentionOp:
        """The op, of an element type.

        Raises:
            InvalidInput: names what is wrong with a field, behind the op's name.
        """
        try:
            shape = self.to_shape(dtype)
            form = self.form_of(shape)
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.{error.field}", error.problem, error.remedy) from error
        op = AttentionOp(name=self.name, source=self.source, lengths=self.lengths, shape=shape, form=form)
        if op.m != m:
            rows = f"{shape.sequences} sequences of {shape.new_tokens} new tokens"
            raise InvalidInput("m", f"is {m}, and {op.name} has {op.m} rows: {rows}", f"give {op.m}")
        return op

    @classmethod
    def from_op(cls, op: AttentionOp) -> Self:
        """Inverse of `to_op`."""
        return cls(op="attention", name=op.name, source=op.source, **_fields_of(op))


def _fields_of(op: AttentionOp) -> dict[str, Any]:
    shape = op.shape
    return {
        "sequences": shape.sequences,
        "heads": shape.kv_heads * shape.query_heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_length": shape.max_length,
        "new_tokens": shape.new_tokens,
        "scale": shape.scale,
        "lengths": op.lengths,
        **form_to_json(op.form),
    }


MODEL = ChainAttention
