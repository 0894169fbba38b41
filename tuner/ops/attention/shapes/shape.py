"""Decode attention: a few new tokens of each sequence over the sequence's cache of keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.kv_cache import HEAD_DIMS, MOST_NEW_TOKENS, MOST_ROWS
from tuner.errors import InvalidInput

MOST_QUERY_HEADS = 16
#: Sequences and KV heads have 16 bits each in a task.
MOST_SEQUENCES = 2**15 - 1


@dataclass(frozen=True, kw_only=True)
class DecodeAttention:
    """`out = softmax(scale Q K^T) V` for each sequence and head; causal among the new tokens.

    Queries and results are [sequences, new_tokens, kv_heads * query_heads, head_dim]. The cache of keys, and that of
    values, is [sequences, kv_heads, max_length, head_dim]. Lengths are known only when a launch runs.
    """

    #: Sequences of a launch, including padded slots.
    sequences: int
    #: Heads of the cache.
    kv_heads: int
    #: Query heads that share a KV head, 1 to 16.
    query_heads: int
    #: Elements of a head: 64 or 128.
    head_dim: int
    #: Tokens of the longest context, including the new ones.
    max_length: int
    #: New tokens per sequence, 1 to 8, at the end of its context.
    new_tokens: int = 1
    dtype: Dtype = Dtype.BF16
    #: Factor of the scores; None for 1 / sqrt(head_dim).
    scale: float | None = None

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of range; the message says what is expected.
        """
        if self.dtype.row.tensor_kind is None:
            raise InvalidInput("dtype", f"tensor-core engines do not multiply {self.dtype}", "use one of 16 bits")
        _check_range("sequences", self.sequences, MOST_SEQUENCES)
        _check_range("kv_heads", self.kv_heads, MOST_SEQUENCES)
        _check_range("query_heads", self.query_heads, MOST_QUERY_HEADS)
        if self.head_dim not in HEAD_DIMS:
            raise InvalidInput("head_dim", f"{self.head_dim!r} is not supported by any kernel", "use 64 or 128")
        if isinstance(self.new_tokens, int) and self.new_tokens > MOST_NEW_TOKENS:
            raise InvalidInput(
                "new_tokens",
                (f"{self.new_tokens} new tokens are prefill, but only decode is supported"),
                f"use at most {MOST_NEW_TOKENS}",
            )
        _check_range("new_tokens", self.new_tokens, MOST_NEW_TOKENS)
        _check_range("max_length", self.max_length, MOST_ROWS)
        if self.max_length < self.new_tokens:
            problem = f"{self.max_length} tokens cannot hold the {self.new_tokens} new ones"
            raise InvalidInput("max_length", problem, f"use at least new_tokens, {self.new_tokens}")
        if (rows := self.sequences * self.kv_heads * self.max_length) > MOST_ROWS:
            problem = f"sequences * kv_heads * max_length is {rows}, but a cache has at most {MOST_ROWS} rows"
            raise InvalidInput("max_length", problem, "use a shorter one, or fewer sequences")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidInput("scale", f"{self.scale!r} is not a valid scale", "use a finite number above 0")

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def columns(self) -> int:
        """Queries that share a KV head, for all new tokens."""
        return self.query_heads * self.new_tokens

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens."""
        return 2 * tokens * self.kv_heads * self.head_dim * self.dtype.size_bytes


def _check_range(field: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidInput(field, f"{value!r} is out of range", f"use a whole number from 1 to {most}")
