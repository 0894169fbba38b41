"""Chains of more than two ops as a client gives them: op by op, or a model's decoder block by its name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from tuner.core.problem.presets import Run, decoder_block
from tuner.core.problem.workload import Dtype, Workload, WorkloadKind
from tuner.wire.fields import DtypeName, Size, Strict
from tuner.wire.ops import AnyOp, model_of

RunName = Annotated[Run, Field(strict=False, description="the whole block, or the ops between two all-reduces")]


class Chain(Strict):
    """Up to eight ops in topological order: GEMMs and attentions, each behind what it reads."""

    kind: Literal["chain"] = Field(description="up to eight ops, each of which reads inputs and earlier ops")
    m: Size = Field(description="rows of every tensor")
    ops: list[AnyOp] = Field(min_length=1, description="each after those that it reads")
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """The ops.

        Raises:
            InvalidInput: names what is wrong with an op, or with how they read each other.
        """
        ops = tuple(op.to_op(self.m, self.dtype) for op in self.ops)
        return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=self.dtype)

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Inverse of `to_workload`."""
        ops = [model_of(op).from_op(op) for op in workload.ops]
        return cls(kind="chain", m=workload.ops[0].m, ops=ops, dtype=workload.dtype)


class DecoderBlock(Strict):
    """What lies between two attentions of a model's decoder layer."""

    kind: Literal["decoder-block"] = Field(description="o_proj, gate_up, down and qkv of a model, with their norms")
    model: str = Field(description="e.g. `llama3-8b`")
    m: Size = Field(description="rows: tokens of a step")
    tp: int = Field(default=1, ge=1, le=64, description="ranks that share the layer")
    run: RunName = Run.BLOCK
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """The ops of one rank.

        Raises:
            InvalidInput: the model is unknown, cannot be shared so, or an all-reduce stands within.
        """
        return decoder_block(self.model, m=self.m, tp=self.tp, dtype=self.dtype, run=self.run)
