"""Chains of more than two ops as a client gives them: op by op, or a model's decoder block by its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.presets import Run, decoder_block
from tuner.core.problem.rotary import Rotary
from tuner.core.problem.workload import DEFAULT_EPS, Activation, Dtype, GemmOp, Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.wire.attentions import ChainAttention
from tuner.wire.fields import ActivationName, DtypeName, Name, Size, Strict

RunName = Annotated[Run, Field(strict=False, description="the whole block, or the ops between two all-reduces")]


class ChainRotary(Strict):
    """Rotary embedding of queries and keys, and the write of keys and values to the cache."""

    heads: int = Field(description="of queries; a row of the op has these, then those of keys, then those of values")
    kv_heads: int = Field(description="of keys, and of values: heads of the cache")
    head_dim: int = Field(description="elements of a head: 64 or 128")
    max_length: int = Field(description="tokens of the longest context, new ones included")
    new_tokens: int = Field(default=1, description="of each sequence, 1 to 8: its rows follow each other")
    page_tokens: int | None = Field(
        default=None, description="of a page of the cache: 16, 32 or 64; null for a contiguous cache"
    )
    heads_first: bool = Field(
        default=True, description="whether a page is [kv_heads, tokens, head_dim], else [tokens, kv_heads, head_dim]"
    )


class ChainOp(Strict):
    """C[m, n] = act(s[m] A[m, k] W[n, k]^T + bias) + R[m, n]; gated, W is [2n, k] and C is act(gate) * up + R."""

    name: Name = Field(description="of the op, and of the tensor that it writes")
    source: Name = Field(description="what it reads as A: an earlier op, or any other name for an input")
    n: Size = Field(description="columns of C, rows of W")
    k: Size = Field(description="columns of A and W")
    activation: ActivationName = Activation.IDENTITY
    gated: bool = Field(default=False, description="whether W holds a gate above an up projection")
    bias: bool = Field(default=False, description="whether a bias vector is added")
    residual: Name | None = Field(default=None, description="what is added: an earlier op, or a name for an input")
    row_scale: bool = Field(default=False, description="whether row i is multiplied by s[i], an fp32 input")
    norm: Name | None = Field(
        default=None, description="whose RMSNorm scales the rows: an earlier op, or an input with its squares' sums"
    )
    eps: float | None = Field(default=None, ge=0, lt=1, description="of the norm; 1e-5 unless given")
    is_output: bool = Field(default=False, description="whether the caller reads C, though another op does, too")
    rotary: ChainRotary | None = Field(
        default=None,
        description="whether C is queries, keys and values of new tokens, which are turned and written to a cache",
    )

    def to_op(self, m: int) -> GemmOp:
        """The op, for so many rows.

        Raises:
            InvalidInput: a matrix overflows a 32-bit index, or options do not go together.
        """
        rotary = self._rotary()
        return GemmOp(
            name=self.name,
            m=m,
            n=self.n // 2 if rotary else self.n,
            k=self.k,
            source=self.source,
            activation=self.activation,
            bias=self.bias,
            gated=self.gated,
            residual=self.residual is not None,
            residual_source=self.residual or "",
            row_scale=self.row_scale,
            norm=self.norm or "",
            eps=DEFAULT_EPS if self.eps is None else self.eps,
            is_output=self.is_output,
            rotary=rotary,
        )

    def _rotary(self) -> Rotary | None:
        if self.rotary is None:
            return None
        try:
            found = Rotary(**self.rotary.model_dump())
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.rotary.{error.field}", error.problem, error.remedy) from error
        if self.n != 2 * found.num_pairs:
            columns = 2 * found.num_pairs
            problem = f"is {self.n}, and heads of queries, keys and values have {columns} columns"
            raise InvalidInput(f"{self.name}.n", problem, f"give {columns}")
        return found

    @classmethod
    def from_op(cls, op: GemmOp) -> Self:
        """Inverse of `to_op`."""
        return cls(
            name=op.name,
            source=op.source,
            n=op.result_columns,
            k=op.k,
            activation=op.activation,
            gated=op.gated,
            bias=op.bias,
            residual=op.residual_source or None,
            row_scale=op.row_scale,
            norm=op.norm or None,
            eps=op.eps if op.norm else None,
            is_output=op.is_output,
            rotary=ChainRotary(**op.rotary.to_json()) if op.rotary else None,
        )


#: Tags of the union of ops; no request names them.
OP_TAGS = PRODUCT_TAG, ATTENTION_TAG = "op:product", "op:attention"


def _tag(op: Any) -> str:
    """Which of the ops it is: only an attention says so."""
    has_op = "op" in op if isinstance(op, dict) else hasattr(op, "op")
    return ATTENTION_TAG if has_op else PRODUCT_TAG


AnyOp = Annotated[
    Annotated[ChainOp, Tag(PRODUCT_TAG)] | Annotated[ChainAttention, Tag(ATTENTION_TAG)], Discriminator(_tag)
]


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
        ops = tuple(op.to_op(self.dtype) if isinstance(op, ChainAttention) else op.to_op(self.m) for op in self.ops)
        if other := next((op for op in ops if isinstance(op, AttentionOp) and op.m != self.m), None):
            rows = f"{other.shape.sequences} sequences of {other.shape.new_tokens} new tokens"
            problem = f"is {self.m}, and {other.name} has {other.m} rows: {rows}"
            raise InvalidInput("m", problem, f"give {other.m}")
        return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=self.dtype)

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Inverse of `to_workload`."""
        ops = [
            ChainAttention.from_op(op) if isinstance(op, AttentionOp) else ChainOp.from_op(op) for op in workload.ops
        ]
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
