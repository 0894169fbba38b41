"""The workloads that a job may request: pairs, chains, and ops of a model by its name.

Written by ``python -m tests.house.documents``.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class ChainRotary(TypedDict):
    """Rotary embedding of queries and keys, and the write of keys and values to the cache."""

    heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    new_tokens: NotRequired[int]
    page_tokens: NotRequired[int | None]
    heads_first: NotRequired[bool]


class ChainPart(TypedDict):
    """A part of an epilogue that a package provides, and its numbers."""

    part: str


class ChainOp(TypedDict):
    """C[m, n] = act(s[m] A[m, k] W[n, k]^T + bias) + R[m, n]; if gated, W is [2n, k] and C is act(gate) * up + R."""

    name: str
    source: str
    n: int
    k: int
    activation: NotRequired[str]
    gated: NotRequired[bool]
    bias: NotRequired[bool]
    residual: NotRequired[str | None]
    row_scale: NotRequired[bool]
    norm: NotRequired[str | None]
    eps: NotRequired[float | None]
    is_output: NotRequired[bool]
    rotary: NotRequired[ChainRotary | None]
    epilogue: NotRequired[list[ChainPart]]
    out_dtype: NotRequired[str | None]
    weights: NotRequired[str | None]


class AttentionSizes(TypedDict):
    """The sizes of a decode attention, except its element type and its heads."""

    sequences: int
    max_length: int
    new_tokens: NotRequired[int]
    lengths: NotRequired[str]
    timed_length: NotRequired[int | None]
    page_tokens: NotRequired[int | None]
    heads_first: NotRequired[bool]
    window: NotRequired[int | None]
    soft_cap: NotRequired[float | None]


class AttentionHeads(AttentionSizes):
    """All sizes of a decode attention except its element type."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: NotRequired[float | None]


class ChainAttention(AttentionHeads):
    """The output of decode attention: a row for each new token of each sequence, with its heads concatenated."""

    op: Literal["attention"]
    name: str
    source: NotRequired[str]


class ChainConv(TypedDict):
    """Out[b, y, x, f] = act(bias[f] + R[b, y, x, f] + the convolution of images with filters), NHWC."""

    op: Literal["conv"]
    name: str
    source: NotRequired[str]
    images: int
    height: int
    width: int
    channels: int
    filters: int
    kernel: NotRequired[int]
    stride: NotRequired[int]
    padding: NotRequired[int]
    activation: NotRequired[str]
    bias: NotRequired[bool]
    residual: NotRequired[str | None]
    is_output: NotRequired[bool]
    groups: NotRequired[int]
    dilation: NotRequired[int]


class ChainConvPair(TypedDict):
    """Out = act(conv(act(conv(In, W1) + b1), W2) + R + b2), NHWC, as two `ConvOp` compute it."""

    op: Literal["conv_pair"]
    name: str
    images: int
    height: int
    width: int
    channels: int
    between: int
    filters: int
    first_kernel: NotRequired[int]
    first_stride: NotRequired[int]
    first_padding: NotRequired[int]
    second_kernel: NotRequired[int]
    second_stride: NotRequired[int]
    second_padding: NotRequired[int]
    source: NotRequired[str]
    first_op: NotRequired[str]
    activation: NotRequired[str]
    bias: NotRequired[bool]
    residual_source: NotRequired[str]
    is_output: NotRequired[bool]


class ChainPooling(TypedDict):
    """Out[b, y, x, c] = the maximum or the average of a window of images, NHWC."""

    op: Literal["conv_pooling"]
    name: str
    source: NotRequired[str]
    images: int
    height: int
    width: int
    channels: int
    function: NotRequired[str]
    kernel: NotRequired[int]
    stride: NotRequired[int]
    padding: NotRequired[int]
    is_output: NotRequired[bool]


class FfnPair(TypedDict):
    """Y[m, d_out] = act(s[m] X[m, d_in] W1[d_hidden, d_in]^T + b1) W2[d_out, d_hidden]^T + b2 + R[m, d_out]."""

    kind: Literal["ffn"]
    m: int
    d_in: int
    d_hidden: int
    d_out: int
    activation: NotRequired[str]
    bias: NotRequired[bool]
    gated: NotRequired[bool]
    residual: NotRequired[bool]
    row_scale: NotRequired[bool]
    dtype: NotRequired[str]


class Gemm(TypedDict):
    """C[m, n] = A[m, k] W[n, k]^T."""

    m: int
    n: int
    k: int


class IndependentPair(TypedDict):
    """Two independent GEMMs."""

    kind: Literal["independent"]
    first: Gemm
    second: Gemm
    dtype: NotRequired[str]


class DecoderBlock(TypedDict):
    """The ops between two attentions of a model's decoder layers."""

    kind: Literal["decoder-block"]
    model: str
    m: int
    tp: NotRequired[int]
    run: NotRequired[str]
    dtype: NotRequired[str]
    weights: NotRequired[str | None]


class QuantisedFfn(TypedDict):
    """A feed-forward block with quantised weights: Y = s2 (H W2^T), H = act(s1 X W1^T) / h, rounded."""

    kind: Literal["quantised-ffn"]
    m: int
    d_in: int
    d_hidden: int
    d_out: int
    scheme: str
    activation: NotRequired[str]
    gated: NotRequired[bool]
    out_dtype: NotRequired[str]
    dtype: NotRequired[str | None]
    weights: NotRequired[str | None]


class Attention(AttentionHeads):
    """Decode attention by its sizes, alone or with a projection of its output."""

    kind: Literal["attention"]
    d_out: NotRequired[int | None]
    dtype: NotRequired[str]


class DecoderAttention(AttentionSizes):
    """The attention of a model's decoder layer on one rank, with or without o_proj after it."""

    kind: Literal["decoder-attention"]
    model: str
    tp: NotRequired[int]
    projection: NotRequired[bool]
    dtype: NotRequired[str]


class DecoderLayer(AttentionSizes):
    """A decode step of a model's layer on one rank, from its attention to the next layer's qkv, or starting with its
    own qkv."""

    kind: Literal["decoder-layer"]
    model: str
    tp: NotRequired[int]
    run: NotRequired[str]
    rotary: NotRequired[bool]
    dtype: NotRequired[str]
    weights: NotRequired[str | None]


class Filters(TypedDict):
    """The filters of one convolution, whose padding is half of a filter."""

    filters: int
    kernel: int
    stride: int


class ConvPair(TypedDict):
    """Two convolutions of images, NHWC, with a bias each; the second reads the first one's output."""

    kind: Literal["conv-pair"]
    images: int
    height: int
    width: int
    channels: int
    first: Filters
    second: Filters
    activation: NotRequired[str]
    residual: NotRequired[bool]
    dtype: NotRequired[str]


class NetworkConvs(TypedDict):
    """Neighbouring convolutions of a network, with batch norm folded into filters and biases."""

    kind: Literal["network-convs"]
    network: str
    stage: int
    run: NotRequired[str]
    images: int
    dtype: NotRequired[str]


class Chain(TypedDict):
    """Up to eight ops in topological order."""

    kind: Literal["chain"]
    m: NotRequired[int]
    ops: list[ChainOp | ChainAttention | ChainConv | ChainConvPair | ChainPooling]
    dtype: NotRequired[str]


class UnknownOps(TypedDict):
    """The ops of a job, one of which is of a kind that this server does not know. It stores them, but cannot run
    them."""

    kind: Literal["unknown"]
    unknown_kinds: list[str]
    ops: list[dict[str, Any]]
    dtype: str


#: A workload in the form of responses.
Pair = FfnPair | IndependentPair | Chain | UnknownOps


#: What `POST /jobs` accepts as `pair`. In the response, a preset appears as its chain.
Asked = Pair | DecoderBlock | QuantisedFfn | Attention | DecoderAttention | DecoderLayer | ConvPair | NetworkConvs
