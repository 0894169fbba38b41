"""What an epilogue does to queries, keys and values of new tokens: rotary embedding, and the write to the cache.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; elements i and
i + head_dim / 2 of a head are a pair, as in Llama.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from tuner.core.problem.attention import HEAD_DIMS, MOST_NEW_TOKENS
from tuner.errors import InvalidInput

#: Names of the operands, behind the op's: both caches, int32 lengths of the sequences, and fp32 radians a token.
CACHES = ("keys", "values")
#: Those that an attention has, too, which reads the cache.
WITH_ATTENTION = (*CACHES, "lengths")
OPERANDS = (*WITH_ATTENTION, "frequencies")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """The heads of a product's columns, and the contiguous cache that it writes to.

    A row of the product is a new token: queries of all heads, then keys, then values. Queries and keys are turned by
    position * frequencies. Keys and values go to [sequences, kv_heads, max_length, head_dim], at the token's position.
    A token in front of its sequence, or behind max_length, has no place there.
    """

    #: Heads of queries, and of keys and of values.
    heads: int
    kv_heads: int
    #: Elements of a head.
    head_dim: int
    #: Tokens of the longest context, new ones included.
    max_length: int
    #: Of each sequence: the last ones of its context.
    new_tokens: int = 1

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of its range, and what would be right.
        """
        for field in ("heads", "kv_heads", "new_tokens", "max_length"):
            if (value := getattr(self, field)) < 1:
                raise InvalidInput(field, f"must be at least 1, got {value}", "give a whole number from 1 on")
        rules = (
            (
                self.heads % self.kv_heads != 0,
                "heads",
                f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly",
                f"give a multiple of kv_heads, {self.kv_heads}",
            ),
            (self.head_dim not in HEAD_DIMS, "head_dim", f"{self.head_dim} has no kernel", "give 64 or 128"),
            (
                self.new_tokens > MOST_NEW_TOKENS,
                "new_tokens",
                f"{self.new_tokens} new tokens are prefill, and this is decode",
                f"give 1 to {MOST_NEW_TOKENS}",
            ),
            (
                self.max_length < self.new_tokens,
                "max_length",
                f"{self.max_length} tokens do not hold the {self.new_tokens} new ones",
                f"give at least new_tokens, {self.new_tokens}",
            ),
        )
        for is_broken, field, problem, remedy in rules:
            if is_broken:
                raise InvalidInput(field, problem, remedy)

    @property
    def num_pairs(self) -> int:
        """Of a row: queries', keys' and values'."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim // 2

    @property
    def query_columns(self) -> int:
        """Of a row, those of all query heads."""
        return self.heads * self.head_dim

    def pair_of(self, column: int) -> int:
        """The pair that an element of a row belongs to, heads side by side."""
        half = self.head_dim // 2
        return column // self.head_dim * half + column % half

    def num_sequences(self, rows: int) -> int:
        """Of so many new tokens."""
        return rows // self.new_tokens

    def cache_shape(self, rows: int) -> tuple[int, int, int, int]:
        """Of keys, and of values."""
        return (self.num_sequences(rows), self.kv_heads, self.max_length, self.head_dim)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a field is out of its range.
        """
        return cls(**data)
