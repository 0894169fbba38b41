"""Products as clients request them: as an op of a chain, as a pair by its sizes, and as the products of a model by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Self

from tuner.core.problem.activation import Activation
from tuner.core.problem.asked import SIZE, AskedOp, AskedWorkload, Example, Json, asked_field, op_of
from tuner.core.problem.decoder import MODELS, STORED_WEIGHTS, block_products, check_reduced, shared_model
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.added import AddedPart, asked_part, parts_from_json
from tuner.core.problem.epilogue.norm import DEFAULT_EPS
from tuner.core.problem.epilogue.scales.channel_scale import stored_fields
from tuner.core.problem.ops.codec import fields_from_json, fields_to_json
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.ops.gemm.quantised import QuantisedFfn
from tuner.ops.gemm.scaled_chain import scaled_products

_DTYPE = "element type of every tensor; sums are in fp32"


@dataclass(frozen=True, kw_only=True)
class ChainRotary:
    """Rotary embedding of queries and keys, and the write of keys and values to the cache."""

    heads: int = asked_field(
        "number of query heads; a row of the op has these, then those of keys, then those of values"
    )
    kv_heads: int = asked_field("number of key heads, and of value heads")
    head_dim: int = asked_field("elements per head: 64 or 128")
    max_length: int = asked_field("tokens of the longest context, new ones included")
    new_tokens: int = asked_field("new tokens of each sequence, 1 to 8; its rows follow each other", 1)
    page_tokens: int | None = asked_field(
        ("tokens per page of the cache: 16, 32 or 64; null for a contiguous cache"), None
    )
    heads_first: bool = asked_field(
        "whether a page is [kv_heads, tokens, head_dim], else [tokens, kv_heads, head_dim]", True
    )


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class ChainPart:
        """A part of an epilogue that comes from a package, and its numbers."""

        part: str
else:
    ChainPart = asked_part()


@dataclass(frozen=True, kw_only=True)
class ChainOp(AskedOp):
    """C[m, n] = act(s[m] A[m, k] W[n, k]^T + bias) + R[m, n]; if gated, W is [2n, k] and C is act(gate) * up + R."""

    name: str = asked_field("name of the op, and of the tensor that it writes")
    source: str = asked_field("what it reads as A: an earlier op, or any other name for an input")
    n: int = asked_field("columns of C, rows of W", bounds=SIZE)
    k: int = asked_field("columns of A and W", bounds=SIZE)
    activation: Activation = asked_field("applied to the first product", Activation.IDENTITY)
    gated: bool = asked_field("whether W holds a gate and an up projection", False)
    bias: bool = asked_field("whether a bias vector is added", False)
    residual: str | None = asked_field("what is added: an earlier op, or a name for an input", None)
    row_scale: bool = asked_field("whether row i is multiplied by s[i], an fp32 input", False)
    norm: str | None = asked_field(
        "the op whose RMSNorm scales the rows: an earlier op, or an input with the sums of its squares", None
    )
    eps: float | None = asked_field("epsilon of the norm; default 1e-5", None, {"ge": 0, "lt": 1})
    is_output: bool = asked_field("whether the caller also reads C if another op does", False)
    rotary: ChainRotary | None = asked_field(
        "whether C is queries, keys and values of new tokens, which are rotated and written to a cache", None
    )
    epilogue: tuple[ChainPart, ...] = asked_field(
        "channel_scale, output_scale, or parts from packages on the server, by name", ()
    )
    out_dtype: Dtype | None = asked_field("element type of C; null for the chain's dtype", None)
    weights: WeightFormat | None = asked_field(
        ("format in which W is stored, with fewer bits; null for the chain's dtype"), None
    )

    def to_op(self, m: int, dtype: Dtype) -> GemmOp:
        """The op for `m` rows and any element type.

        Raises:
            InvalidInput: a matrix overflows a 32-bit index, or options do not fit together.
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
            epilogue=self._epilogue(),
            out_dtype=self.out_dtype,
            weights=self.weights,
        )

    def _epilogue(self) -> tuple[AddedPart, ...]:
        try:
            return parts_from_json([fields_to_json(part) for part in self.epilogue])
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.{error.field}", error.problem, error.remedy) from error

    def _rotary(self) -> Rotary | None:
        if self.rotary is None:
            return None
        try:
            found = Rotary(**{one.name: getattr(self.rotary, one.name) for one in fields(ChainRotary)})
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.rotary.{error.field}", error.problem, error.remedy) from error
        if self.n != 2 * found.num_pairs:
            columns = 2 * found.num_pairs
            problem = f"is {self.n}, but heads of queries, keys and values have {columns} columns"
            raise InvalidInput(f"{self.name}.n", problem, f"use {columns}")
        return found

    @classmethod
    def of(cls, op: GemmOp) -> Self:
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
            epilogue=tuple(fields_from_json(ChainPart, part.to_json()) for part in op.epilogue),
            out_dtype=op.out_dtype,
            weights=op.weights,
        )


@dataclass(frozen=True, kw_only=True)
class FfnPair(AskedWorkload):
    """Y[m, d_out] = act(s[m] X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R[m, d_out].

    If gated, W1 is [2 d_hidden, d_in], a gate above an up projection, and the intermediate is act(gate) * up.
    """

    KIND: ClassVar[str] = "ffn"
    SUMMARY: ClassVar[str] = "two GEMMs, the second of which reads the output of the first"
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "gated": Example(
            "A SwiGLU feed-forward block after RMSNorm, with its residual",
            {"m": 16, "d_in": 4096, "d_hidden": 14336, "d_out": 4096, "dtype": "fp16", "activation": "silu",
             "gated": True, "residual": True, "row_scale": True},
        )
    }  # fmt: skip

    by_model: ClassVar[tuple[str, ...]] = ("d_in", "d_hidden", "d_out", "activation", "gated")

    m: int = asked_field("rows of X and Y", bounds={**SIZE, "example": 16, "label": "Rows (m), or several"})
    d_in: int = asked_field("columns of X", bounds={**SIZE, "example": 4096, "label": "d_in"})
    d_hidden: int = asked_field("columns of the intermediate", bounds={**SIZE, "example": 14336, "label": "d_hidden"})
    d_out: int = asked_field("columns of Y", bounds={**SIZE, "example": 4096, "label": "d_out"})
    activation: Activation = asked_field("applied to the first product", Activation.IDENTITY)
    bias: bool = asked_field("whether both products add a bias vector", False)
    gated: bool = asked_field("whether the intermediate is act(gate) * up: SwiGLU with silu, GeGLU with gelu", False)
    residual: bool = asked_field("whether R [m, d_out] is added to the second product", False)
    row_scale: bool = asked_field("whether row i of the first product is multiplied by s[i], fp32: RMSNorm", False)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)

    @classmethod
    def of_model(cls, model: str, tp: int) -> Json:
        """The sizes of a model's feed-forward block, SwiGLU."""
        if model not in MODELS:
            raise InvalidInput("model", f"{model!r} is unknown", f"choose one of {', '.join(MODELS)}")
        sizes = MODELS[model]
        if sizes.intermediate % tp:
            problem = f"is {tp}, but the intermediate of {model} has {sizes.intermediate} columns"
            raise InvalidInput("tp", problem, "use a number of ranks that divides it")
        columns = {"d_in": sizes.hidden, "d_hidden": sizes.intermediate // tp, "d_out": sizes.hidden}
        return {**columns, "activation": "silu", "gated": True}

    def to_workload(self) -> Workload:
        """The two ops."""
        return ffn_pair(**{one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def of(cls, workload: Workload) -> Self | None:
        """Inverse of `to_workload`."""
        if workload.kind is not WorkloadKind.FFN:
            return None
        up, down = workload.tile_ops
        return cls(
            m=up.m,
            d_in=up.k,
            d_hidden=up.n,
            d_out=down.n,
            dtype=workload.dtype,
            activation=up.activation,
            bias=up.bias,
            gated=up.gated,
            residual=down.residual,
            row_scale=up.row_scale,
        )


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """C[m, n] = A[m, k] W[n, k]^T."""

    m: int = asked_field("rows of A and C", bounds=SIZE)
    n: int = asked_field("rows of W, columns of C", bounds=SIZE)
    k: int = asked_field("columns of A and W", bounds=SIZE)


@dataclass(frozen=True, kw_only=True)
class IndependentPair(AskedWorkload):
    """Two independent GEMMs."""

    KIND: ClassVar[str] = "independent"
    SUMMARY: ClassVar[str] = "two independent GEMMs"
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "independent": Example(
            "Two independent GEMMs",
            {"first": {"m": 512, "n": 4096, "k": 4096}, "second": {"m": 512, "n": 1024, "k": 4096}, "dtype": "bf16"},
        )
    }

    first: Gemm = asked_field("the first GEMM", bounds={"example": "512,4096,4096"})
    second: Gemm = asked_field("the second GEMM", bounds={"example": "512,1024,4096"})
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)

    def to_workload(self) -> Workload:
        """The two ops."""
        first, second = ((gemm.m, gemm.n, gemm.k) for gemm in (self.first, self.second))
        return independent_pair(first, second, dtype=self.dtype)

    @classmethod
    def of(cls, workload: Workload) -> Self | None:
        """Inverse of `to_workload`."""
        if workload.kind is not WorkloadKind.INDEPENDENT:
            return None
        first, second = (Gemm(m=op.m, n=op.n, k=op.k) for op in workload.tile_ops)
        return cls(first=first, second=second, dtype=workload.dtype)


class Run(StrEnum):
    """Neighbouring ops of a decoder block."""

    #: All four ops.
    BLOCK = "block"
    #: o_proj alone, before an all-reduce.
    O_PROJ = "o_proj"
    #: Norm, gate_up and down, between two all-reduces.
    MLP = "mlp"
    #: Norm and qkv, after an all-reduce.
    QKV = "qkv"


_OPS = {Run.BLOCK: ("o_proj", "gate_up", "down", "qkv"), Run.O_PROJ: ("o_proj",), Run.MLP: ("gate_up", "down"),
        Run.QKV: ("qkv",)}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecoderBlock(AskedWorkload):
    """The ops between two attentions of a model's decoder layers."""

    KIND: ClassVar[str] = "decoder-block"
    SUMMARY: ClassVar[str] = "a model's o_proj, gate_up, down and qkv, with norms"
    CHOICES: ClassVar[Mapping[str, Json]] = {"decoder block": {}}
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "decoder_block": Example("A model's block, from o_proj to the next qkv", {"model": "llama3-8b", "m": 16})
    }

    model: str = asked_field("a model, e.g. `llama3-8b`", bounds={"choices": tuple(MODELS)})
    m: int = asked_field("rows, which are the tokens per step", bounds=SIZE)
    tp: int = asked_field("number of ranks that share the layer", 1, {"ge": 1, "le": 64, "label": "Ranks (tp)"})
    run: Run = asked_field("the whole block, or the ops between two all-reduces", Run.BLOCK)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)
    weights: WeightFormat | None = asked_field(STORED_WEIGHTS, None)

    def to_workload(self) -> Workload:
        """The ops of one rank.

        Raises:
            InvalidInput: the model is unknown, the ranks cannot share it, there is an all-reduce inside, or a bias
                would have 8 bits.
        """
        sizes = shared_model(self.model, self.tp)
        if self.run is Run.BLOCK:
            check_reduced(self.tp, "o_proj, mlp or qkv")
        products = block_products(sizes, self.tp, in_runs=self.run is not Run.BLOCK, stored=stored_fields(self.weights))
        chosen = [products[name] for name in _OPS[self.run]]
        if self.dtype.sums is not self.dtype:
            chosen = scaled_products(chosen, self.dtype.sums)
        ops = tuple(op_of(one, self.m, self.dtype) for one in chosen)
        return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=self.dtype)


OP = ChainOp
WORKLOADS = (FfnPair, IndependentPair, DecoderBlock, QuantisedFfn)
