"""Decode attention as clients request it: as an op of a chain, by its sizes, or by a model's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from tuner.core.problem.asked import COUNT, SIZE, AskedOp, AskedWorkload, Example, Json, asked_field, op_of
from tuner.core.problem.decoder import MODELS, STORED_WEIGHTS, block_products, check_reduced, shared_model
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.scales.channel_scale import stored_fields
from tuner.core.problem.ops.kv_cache import PAGE_TOKENS
from tuner.core.problem.ops.op import Op
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.attention.op import AttentionOp, Lengths
from tuner.ops.attention.shapes.form import AttentionForm, form_for, form_to_json
from tuner.ops.attention.shapes.shape import DecodeAttention

_DTYPE = "element type of every tensor; sums are in fp32"
_TP = {"ge": 1, "le": 64, "label": "Ranks (tp)"}
_MODEL = {"choices": tuple(MODELS)}
#: Default names of the op, and of the product after it.
_NAME, _PROJECTION = "attention", "o_proj"


@dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """The sizes of a decode attention, except its element type and its heads."""

    sequences: int = asked_field("sequences per launch, including padded slots", bounds={**COUNT, "example": 1})
    max_length: int = asked_field(
        "tokens of the longest context, including new ones; each launch has its own lengths",
        bounds={**COUNT, "example": 1024, "label": "Longest context"},
    )
    new_tokens: int = asked_field("new tokens per sequence, 1 to 8, at the end of its context", 1, COUNT)
    lengths: Lengths = asked_field(
        ("context length at which it is timed; its results are checked at others too"), Lengths.FULL
    )
    timed_length: int | None = asked_field(
        "longest context at which it is timed, in tokens, e.g. a typical length; null for max_length", None, COUNT
    )
    page_tokens: int | None = asked_field(
        "tokens per page of the cache: 16, 32 or 64; null for a contiguous cache",
        None,
        {"choices": PAGE_TOKENS, "label": "Tokens per page"},
    )
    heads_first: bool = asked_field(
        "whether a page is [kv_heads, tokens, head_dim], else [tokens, kv_heads, head_dim]",
        True,
        {"off": "tokens-first"},
    )
    window: int | None = asked_field("tokens that a query sees, including itself; null for all", None)
    soft_cap: float | None = asked_field("scores become soft_cap * tanh(score / soft_cap); null for no cap", None)

    def shape_of(
        self, *, heads: int, kv_heads: int, head_dim: int, dtype: Dtype, scale: float | None = None
    ) -> DecodeAttention:
        """The shape.

        Raises:
            InvalidInput: a field is out of range, or the KV heads do not divide the heads.
        """
        if heads % kv_heads:
            problem = f"{heads} query heads cannot share {kv_heads} KV heads evenly"
            raise InvalidInput("heads", problem, f"use a multiple of kv_heads, {kv_heads}")
        try:
            return DecodeAttention(
                sequences=self.sequences,
                kv_heads=kv_heads,
                query_heads=heads // kv_heads,
                head_dim=head_dim,
                max_length=self.max_length,
                new_tokens=self.new_tokens,
                dtype=dtype,
                scale=scale,
            )
        except InvalidInput as error:
            if error.field != "query_heads":
                raise
            problem = f"{heads // kv_heads} query heads share a KV head, but a kernel supports at most 16"
            raise InvalidInput("heads", problem, "use fewer heads, or more kv_heads") from error

    def form_of(self, shape: DecodeAttention) -> AttentionForm:
        """The cache's pages, the window and the soft cap.

        Raises:
            InvalidInput: a field is out of range, or the cache has too many rows.
        """
        return form_for(
            shape,
            page_tokens=self.page_tokens,
            heads_first=self.heads_first,
            window=self.window,
            soft_cap=self.soft_cap,
        )

    def op_of_shape(self, shape: DecodeAttention, *, name: str = _NAME, source: str = "q") -> AttentionOp:
        """The op.

        Raises:
            InvalidInput: see `form_of`.
        """
        return AttentionOp(
            name=name,
            source=source,
            lengths=self.lengths,
            timed_length=self.timed_length,
            shape=shape,
            form=self.form_of(shape),
        )


@dataclass(frozen=True, kw_only=True)
class AttentionHeads(AttentionSizes):
    """All sizes of a decode attention except its element type."""

    heads: int = asked_field(
        "query heads, a multiple of kv_heads, at most 16 per KV head", bounds={**COUNT, "example": 32}
    )
    kv_heads: int = asked_field("KV heads", bounds={**COUNT, "example": 8})
    head_dim: int = asked_field("elements per head: 64 or 128", bounds={**COUNT, "example": 128})
    scale: float | None = asked_field("factor of the scores; default 1 / sqrt(head_dim)", None)

    def to_shape(self, dtype: Dtype) -> DecodeAttention:
        """The shape.

        Raises:
            InvalidInput: a field is out of range, or the KV heads do not divide the heads.
        """
        heads = {name: getattr(self, name) for name in ("heads", "kv_heads", "head_dim", "scale")}
        return self.shape_of(**heads, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class ChainAttention(AttentionHeads, AskedOp):
    """The output of decode attention: a row for each new token of each sequence, with its heads concatenated."""

    name: str = asked_field("name of the op, and of the tensor that it writes")
    source: str = asked_field("the queries: an earlier op, or any other name for an input", "q")

    def to_op(self, m: int, dtype: Dtype) -> AttentionOp:
        """The op for an element type.

        Raises:
            InvalidInput: a field is invalid; the message starts with the op's name.
        """
        try:
            shape = self.to_shape(dtype)
            op = self.op_of_shape(shape, name=self.name, source=self.source)
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.{error.field}", error.problem, error.remedy) from error
        if op.m != m:
            rows = f"{shape.sequences} sequences of {shape.new_tokens} new tokens"
            raise InvalidInput("m", f"is {m}, but {op.name} has {op.m} rows: {rows}", f"use {op.m}")
        return op

    @classmethod
    def of(cls, op: AttentionOp) -> Self:
        """Inverse of `to_op`."""
        shape = op.shape
        return cls(
            name=op.name,
            source=op.source,
            sequences=shape.sequences,
            heads=shape.kv_heads * shape.query_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_length=shape.max_length,
            new_tokens=shape.new_tokens,
            scale=shape.scale,
            lengths=op.lengths,
            timed_length=op.timed_length,
            **form_to_json(op.form),
        )


@dataclass(frozen=True, kw_only=True)
class Attention(AttentionHeads, AskedWorkload):
    """Decode attention by its sizes, alone or with a projection of its output."""

    KIND: ClassVar[str] = "attention"
    SUMMARY: ClassVar[str] = "decode attention, and with d_out its projection"
    CHOICES: ClassVar[Mapping[str, Json]] = {"attention, described by its sizes": {}}

    d_out: int | None = asked_field("columns of the projection after it; null for none", None, SIZE)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)

    def to_workload(self) -> Workload:
        """The workload, of one op or two.

        Raises:
            InvalidInput: a field is out of range, or heads do not divide.
        """
        return projected(self.op_of_shape(self.to_shape(self.dtype)), self.d_out)


@dataclass(frozen=True, kw_only=True)
class DecoderAttention(AttentionSizes, AskedWorkload):
    """The attention of a model's decoder layer on one rank, with or without o_proj after it."""

    KIND: ClassVar[str] = "decoder-attention"
    SUMMARY: ClassVar[str] = "a model's attention, and o_proj after it"
    CHOICES: ClassVar[Mapping[str, Json]] = {"attention": {"projection": False}, "attention and o_proj": {}}
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "attention": Example(
            "Decode attention of a model's layer, and o_proj after it",
            {"model": "llama3-8b", "sequences": 16, "max_length": 2048, "dtype": "bf16"},
        )
    }

    model: str = asked_field("a model, e.g. `llama3-8b`", bounds=_MODEL)
    tp: int = asked_field("number of ranks that share the layer", 1, _TP)
    projection: bool = asked_field("whether o_proj follows", True)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)

    def to_workload(self) -> Workload:
        """The ops of one rank.

        Raises:
            InvalidInput: the model is unknown, the ranks cannot share it, or a size is out of range.
        """
        sizes = shared_model(self.model, self.tp)
        op = _of_model(self, self.model, self.tp, self.dtype)
        return projected(op, sizes.hidden if self.projection else None)


class LayerRun(StrEnum):
    """A decoder layer, starting with its attention or its qkv, or neighbouring ops of it."""

    #: The whole layer: attention, o_proj, gate_up, down, and the next layer's qkv.
    LAYER = "layer"
    #: The whole layer with its own qkv: norm, qkv, attention, o_proj, gate_up, down.
    FROM_QKV = "from_qkv"
    #: The ops between two all-reduces: norm, qkv, attention and o_proj.
    QKV_ATTENTION = "qkv_attention"
    #: The ops before an all-reduce: attention and o_proj.
    ATTENTION = "attention"
    #: The ops between two all-reduces: norm, gate_up and down.
    MLP = "mlp"
    #: The ops after an all-reduce: norm and qkv.
    QKV = "qkv"


#: The ops of a run, in their order.
_OPS = {
    LayerRun.LAYER: (_NAME, _PROJECTION, "gate_up", "down", "qkv"),
    LayerRun.FROM_QKV: ("qkv", _NAME, _PROJECTION, "gate_up", "down"),
    LayerRun.QKV_ATTENTION: ("qkv", _NAME, _PROJECTION),
    LayerRun.ATTENTION: (_NAME, _PROJECTION),
    LayerRun.MLP: ("gate_up", "down"),
    LayerRun.QKV: ("qkv",),
}
#: Runs with an all-reduce inside, if ranks share the layer.
_REDUCED = (LayerRun.LAYER, LayerRun.FROM_QKV)


@dataclass(frozen=True, kw_only=True)
class DecoderLayer(AttentionSizes, AskedWorkload):
    """A decode step of a model's layer on one rank, from its attention to the next layer's qkv, or starting with its
    own qkv.

    With `rotary`, qkv rotates queries and keys, and writes keys and values to the cache of its own attention, or of the
    next layer's. Otherwise a kernel before the attention does this, which is not an op.
    """

    KIND: ClassVar[str] = "decoder-layer"
    SUMMARY: ClassVar[str] = "a model's attention, o_proj, gate_up, down, and a qkv"
    CHOICES: ClassVar[Mapping[str, Json]] = {"decoder layer": {}}
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "decoder_layer": Example(
            "A decode step of a model's layer, from its attention on",
            {"model": "llama3-8b", "sequences": 1, "max_length": 2048, "dtype": "bf16"},
        ),
        "rank_of_a_layer": Example(
            "A rank's run between two all-reduces: norm, qkv, attention and o_proj",
            {"model": "llama3-70b", "tp": 8, "run": "qkv_attention", "sequences": 1, "max_length": 2048,
             "dtype": "bf16"},
        ),
    }  # fmt: skip

    model: str = asked_field("a model, e.g. `llama3-8b`", bounds=_MODEL)
    tp: int = asked_field("number of ranks that share the layer", 1, _TP)
    run: LayerRun = asked_field("the whole layer, or the ops between two all-reduces", LayerRun.LAYER)
    rotary: bool = asked_field("whether qkv rotates queries and keys, and writes keys and values to the cache", True)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)
    weights: WeightFormat | None = asked_field(STORED_WEIGHTS, None)

    def to_workload(self) -> Workload:
        """The ops of one rank.

        Raises:
            InvalidInput: the model is unknown, the ranks cannot share it, elements have 8 bits, there is an all-reduce
                inside, a kernel that is not an op is needed after its own qkv, there is no such cache, or no kernel
                supports such weights.
        """
        sizes, names = shared_model(self.model, self.tp), _OPS[self.run]
        if self.dtype.sums is not self.dtype:
            problem = f"is {self.dtype}, but the cache has 16 bits, and attention's output no scales"
            remedy = (
                "use 16 bits, e.g. with weights in fewer bits, or decoder-block: the products between two attentions"
            )
            raise InvalidInput("dtype", problem, remedy)
        if self.run in _REDUCED:
            check_reduced(self.tp, "qkv_attention, attention, mlp or qkv")
        begins_with_qkv = names[0] == "qkv" and _NAME in names
        if begins_with_qkv and not self.rotary:
            problem = (
                "between qkv and its attention, a separate kernel would write to the cache, which is not an op here"
            )
            raise InvalidInput("rotary", problem, "leave it true, or tune qkv and the rest separately")
        products = block_products(sizes, self.tp, in_runs=self.run not in _REDUCED, stored=stored_fields(self.weights))
        if self.rotary and "qkv" in names:
            products["qkv"] = self._turned(products["qkv"])
        if self.run is LayerRun.FROM_QKV:  # its input is an earlier layer's down, not this one's
            products["qkv"] |= {"source": "residual", "norm": "residual"}
            products["down"] = {**products["down"], "is_output": False}
        ops: dict[str, Op] = {}
        if _NAME in names:
            ops[_NAME] = _of_model(self, self.model, self.tp, self.dtype, source="qkv" if begins_with_qkv else "q")
        rows = self.sequences * self.new_tokens
        ops |= {name: op_of(products[name], rows, self.dtype) for name in names if name in products}
        return Workload(kind=WorkloadKind.CHAIN, ops=tuple(ops[name] for name in names), dtype=self.dtype)

    def _turned(self, qkv: dict[str, Any]) -> dict[str, Any]:
        """The qkv product, which rotates queries and keys, and writes keys and values to the cache.

        Raises:
            InvalidInput: there is no such cache.
        """
        sizes = shared_model(self.model, self.tp)
        heads = {"heads": sizes.num_heads, "kv_heads": sizes.num_kv_heads}
        rotary = {name: count // self.tp for name, count in heads.items()} | {"head_dim": sizes.head_size}
        rotary |= {name: getattr(self, name) for name in ("max_length", "new_tokens", "page_tokens", "heads_first")}
        found = {**qkv, "rotary": rotary}
        try:
            op_of(found, self.new_tokens, self.dtype)
        except InvalidInput as error:
            if "epilogue" in qkv and error.field.startswith("qkv.epilogue"):
                problem = f"are {self.weights}, which has a scale per output channel: {error.problem}"
                raise InvalidInput("weights", problem, "use a format with groups, or rotary false") from error
            raise InvalidInput(error.field.removeprefix("qkv.rotary."), error.problem, error.remedy) from error
        return found


def _of_model(sizes: AttentionSizes, model: str, tp: int, dtype: Dtype, source: str = "q") -> AttentionOp:
    """The attention of a model on one of `tp` ranks."""
    found = shared_model(model, tp)
    shape = sizes.shape_of(
        heads=found.num_heads // tp, kv_heads=found.num_kv_heads // tp, head_dim=found.head_size, dtype=dtype
    )
    return sizes.op_of_shape(shape, source=source)


def projected(attention: AttentionOp, d_out: int | None) -> Workload:
    """The op, followed by a product with `d_out` columns if `d_out` is given."""
    ops: tuple[Op, ...] = (attention,)
    dtype = attention.shape.dtype
    if d_out is not None:
        behind = {"name": _PROJECTION, "source": attention.name, "n": d_out, "k": attention.n}
        ops += (op_of(behind, attention.m, dtype),)
    return Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=dtype)


OP = ChainAttention
WORKLOADS = (Attention, DecoderAttention, DecoderLayer)
