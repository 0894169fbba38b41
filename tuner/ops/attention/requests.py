"""Decode attention as a client gives it: as an op of a chain, by its sizes, or by a model's name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.presets import LayerRun, attention_pair, decoder_attention, decoder_layer
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.ops.attention.form import AttentionForm, form_for
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.shape import DecodeAttention
from tuner.wire.fields import DtypeName, Size, Strict

Count = Annotated[int, Field(ge=1)]
LengthsName = Annotated[
    Lengths, Field(strict=False, description="at which it is timed; its numbers are checked at others too")
]
LayerRunName = Annotated[
    LayerRun, Field(strict=False, description="the whole layer, or the ops between two all-reduces")
]


class AttentionSizes(Strict):
    """What decode attention is, beside its element type and its heads."""

    sequences: Count = Field(description="sequences of a launch, padded slots included")
    max_length: Count = Field(
        description="tokens of the longest context, new ones included; lengths come with each launch"
    )
    new_tokens: Count = Field(default=1, description="of each sequence, 1 to 8: the last of its context")
    lengths: LengthsName = Lengths.FULL
    page_tokens: int | None = Field(
        default=None, description="of a page of the cache: 16, 32 or 64; null for a contiguous cache"
    )
    heads_first: bool = Field(
        default=True, description="whether a page is [kv_heads, tokens, head_dim], else [tokens, kv_heads, head_dim]"
    )
    window: int | None = Field(default=None, description="tokens that a query sees, itself included; null for all")
    soft_cap: float | None = Field(
        default=None, description="scores become soft_cap * tanh(score / soft_cap); null for no cap"
    )

    def form_of(self, shape: DecodeAttention) -> AttentionForm:
        """Pages, window and soft cap.

        Raises:
            InvalidInput: a field is out of its range, or the cache has too many rows.
        """
        return form_for(
            shape,
            page_tokens=self.page_tokens,
            heads_first=self.heads_first,
            window=self.window,
            soft_cap=self.soft_cap,
        )


class AttentionHeads(AttentionSizes):
    """All sizes."""

    heads: Count = Field(description="query heads, a multiple of kv_heads: up to 16 share one")
    kv_heads: Count = Field(description="heads of the cache")
    head_dim: Count = Field(description="elements of a head: 64 or 128")
    scale: float | None = Field(default=None, description="of the scores; 1 / sqrt(head_dim) unless given")

    def to_shape(self, dtype: Dtype) -> DecodeAttention:
        """The shape.

        Raises:
            InvalidInput: a field is out of its range, or heads do not divide.
        """
        if self.heads % self.kv_heads:
            problem = f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly"
            raise InvalidInput("heads", problem, f"give a multiple of kv_heads, {self.kv_heads}")
        try:
            return DecodeAttention(
                sequences=self.sequences,
                kv_heads=self.kv_heads,
                query_heads=self.heads // self.kv_heads,
                head_dim=self.head_dim,
                max_length=self.max_length,
                new_tokens=self.new_tokens,
                dtype=dtype,
                scale=self.scale,
            )
        except InvalidInput as error:
            if error.field != "query_heads":
                raise
            problem = f"{self.heads // self.kv_heads} query heads share a KV head, and a kernel has room for 16"
            raise InvalidInput("heads", problem, "give fewer heads, or more kv_heads") from error


class Attention(AttentionHeads):
    """Decode attention by its sizes, alone or with the projection of its results."""

    kind: Literal["attention"] = Field(description="decode attention, and with d_out its projection")
    d_out: Size | None = Field(default=None, description="columns of the projection behind it; none without it")
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """One op or two.

        Raises:
            InvalidInput: a field is out of its range, or heads do not divide.
        """
        shape = self.to_shape(self.dtype)
        return attention_pair(shape, d_out=self.d_out, lengths=self.lengths, form=self.form_of(shape))


class DecoderAttention(AttentionSizes):
    """The attention of a model's decoder layer on one rank, with or without o_proj behind it."""

    kind: Literal["decoder-attention"] = Field(description="a model's attention, and o_proj behind it")
    model: str = Field(description="e.g. `llama3-8b`")
    tp: int = Field(default=1, ge=1, le=64, description="ranks that share the layer")
    projection: bool = Field(default=True, description="whether o_proj is behind it")
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """The ops of one rank.

        Raises:
            InvalidInput: the model is unknown, cannot be shared so, or a size is out of its range.
        """
        return decoder_attention(**self.model_dump(exclude={"kind"}))


class DecoderLayer(AttentionSizes):
    """A decode step of a model's layer on one rank, from its attention on to the next layer's qkv, or from its qkv."""

    kind: Literal["decoder-layer"] = Field(description="a model's attention, o_proj, gate_up, down, and a qkv")
    model: str = Field(description="e.g. `llama3-8b`")
    tp: int = Field(default=1, ge=1, le=64, description="ranks that share the layer")
    run: LayerRunName = LayerRun.LAYER
    rotary: bool = Field(
        default=True, description="whether qkv turns queries and keys, and writes keys and values to the cache"
    )
    dtype: DtypeName = Dtype.FP16

    def to_workload(self) -> Workload:
        """The ops of one rank.

        Raises:
            InvalidInput: the model is unknown, cannot be shared so, an all-reduce stands within, or there is no such
                cache.
        """
        return decoder_layer(**self.model_dump(exclude={"kind"}))
