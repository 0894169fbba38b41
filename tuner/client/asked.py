"""What a job may be asked for: pairs, ops of a model by its name, and attentions by their sizes."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from tuner.client.documents import AttentionHeads, AttentionSizes, Pair


class DecoderBlock(TypedDict):
    """What lies between two attentions of a model's decoder layer on one rank, or a run of it."""

    kind: Literal["decoder-block"]
    model: str
    m: int
    tp: NotRequired[int]
    run: NotRequired[str]
    dtype: NotRequired[str]


class Attention(AttentionHeads):
    """Decode attention by its sizes, alone or with the projection of its results."""

    kind: Literal["attention"]
    d_out: NotRequired[int | None]
    dtype: NotRequired[str]


class DecoderAttention(AttentionSizes):
    """The attention of a model's decoder layer on one rank, with or without o_proj behind it."""

    kind: Literal["decoder-attention"]
    model: str
    tp: NotRequired[int]
    projection: NotRequired[bool]
    dtype: NotRequired[str]


class DecoderLayer(AttentionSizes):
    """A decode step of a model's layer on one rank, or a run of it."""

    kind: Literal["decoder-layer"]
    model: str
    tp: NotRequired[int]
    run: NotRequired[str]
    rotary: NotRequired[bool]
    dtype: NotRequired[str]


#: What `POST /jobs` takes as `pair`. Of presets and attentions the answer has the chain.
Asked = Pair | DecoderBlock | DecoderAttention | DecoderLayer | Attention
