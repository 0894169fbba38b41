"""The epilogue of queries, keys and values of new tokens: rotary embedding, and the write to the cache.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; elements i and
i + head_dim / 2 of a head are a pair, as in Llama.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.kv_cache import CACHES, HEAD_DIMS, MOST_NEW_TOKENS, PagedCache, paged_for
from tuner.core.problem.ops.op import Tensor, cache, given, weight
from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.errors import InvalidInput

#: Fields that are in the JSON form only if they are set.
_LATER = {"page_tokens": None, "heads_first": True}


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """The heads of a product's columns, and the cache that the product writes to.

    A row of the product is a new token: queries of all heads, then keys, then values. Queries and keys are rotated by
    position * frequencies. Keys and values go to [sequences, kv_heads, max_length, head_dim], at the token's position,
    or to the page that a table assigns to the position (see `PagedCache`). A token before the start of its sequence, or
    past max_length, has no position there; nor has one whose page is not in the cache.
    """

    #: Number of query heads, and of key and value heads.
    heads: int
    kv_heads: int
    #: Elements of a head.
    head_dim: int
    #: Tokens of the longest context, new ones included.
    max_length: int
    #: New tokens per sequence, at the end of its context.
    new_tokens: int = 1
    #: Tokens per page of the cache: 16, 32 or 64; None for a contiguous one.
    page_tokens: int | None = None
    #: Whether a page's heads come before its tokens.
    heads_first: bool = True

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of range, with what would be valid.
        """
        for field in ("heads", "kv_heads", "new_tokens", "max_length"):
            if (value := getattr(self, field)) < 1:
                raise InvalidInput(field, f"must be at least 1, got {value}", "use a positive whole number")
        rules = (
            (
                self.heads % self.kv_heads != 0,
                "heads",
                f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly",
                f"use a multiple of kv_heads, {self.kv_heads}",
            ),
            (
                self.head_dim not in HEAD_DIMS,
                "head_dim",
                f"{self.head_dim} is not supported by any kernel",
                "use 64 or 128",
            ),
            (
                self.new_tokens > MOST_NEW_TOKENS,
                "new_tokens",
                f"{self.new_tokens} new tokens are prefill, but only decode is supported",
                f"use 1 to {MOST_NEW_TOKENS}",
            ),
            (
                self.max_length < self.new_tokens,
                "max_length",
                f"{self.max_length} tokens cannot hold the {self.new_tokens} new ones",
                f"use at least new_tokens, {self.new_tokens}",
            ),
        )
        for is_broken, field, problem, remedy in rules:
            if is_broken:
                raise InvalidInput(field, problem, remedy)
        self.paged(self.new_tokens)

    @property
    def operands(self) -> tuple[str, ...]:
        """Suffixes of the op's tensors that the rotary epilogue reads or writes."""
        return (*CACHES, "lengths", *(() if self.page_tokens is None else ("pages",)), "frequencies")

    @property
    def num_pairs(self) -> int:
        """Pairs per row: those of queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim // 2

    @property
    def query_columns(self) -> int:
        """Columns of all query heads in a row."""
        return self.heads * self.head_dim

    def pair_of(self, column: int) -> int:
        """The pair of an element of a row, with heads side by side."""
        half = self.head_dim // 2
        return column // self.head_dim * half + column % half

    def num_sequences(self, rows: int) -> int:
        """Number of sequences for `rows` new tokens."""
        return rows // self.new_tokens

    def positions(self, xp: ArrayModule, lengths: Array, rows: int) -> tuple[Array, Array]:
        """For each of `rows` new tokens: its position in its sequence, given the lengths, and whether it has one."""
        tokens = xp.arange(rows)
        found = lengths[tokens // self.new_tokens] - self.new_tokens + tokens % self.new_tokens
        return found, (found >= 0) & (found < self.max_length)

    def paged(self, rows: int) -> PagedCache | None:
        """The pages of a cache for `rows` new tokens; None for a contiguous cache.

        Raises:
            InvalidInput: there are no pages of this size, or an order is given without pages.
        """
        return paged_for(self, self.num_sequences(rows), page_tokens=self.page_tokens, heads_first=self.heads_first)

    def cache_shape(self, rows: int) -> tuple[int, int, int, int]:
        """Shape of keys, and of values."""
        if (paged := self.paged(rows)) is not None:
            return paged.shape(self)
        return (self.num_sequences(rows), self.kv_heads, self.max_length, self.head_dim)

    def num_cache_rows(self, rows: int) -> int:
        """Rows per head that a kernel counts."""
        if (paged := self.paged(rows)) is not None:
            return paged.num_rows(self)
        return self.num_sequences(rows) * self.kv_heads * self.max_length

    def tensors(self, name: str, rows: int, dtype: Dtype) -> tuple[Tensor, ...]:
        """For an op called `name` with `rows` rows: both caches, lengths, pages, and radians per token."""
        sequences, paged = self.num_sequences(rows), self.paged(rows)
        found = [cache(f"{name}.{one}", self.cache_shape(rows), dtype) for one in CACHES]
        found += [given(f"{name}.lengths", (sequences,), "int32", range=(0, self.max_length))]
        if paged:
            table = (sequences, paged.pages_of(self))
            found += [given(f"{name}.pages", table, "int32", range=(-1, paged.num_pages - 1))]
        return (*found, weight(f"{name}.frequencies", (self.head_dim // 2,), "fp32"))

    def describe(self) -> str:
        """E.g. ``rotary``, or ``rotary to pages of 16``."""
        paged = self.paged(self.new_tokens)
        return "rotary" if paged is None else f"rotary to {paged.describe()}"

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if name not in _LATER or value != _LATER[name]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            InvalidInput: a field is out of range.
        """
        return cls(**data)
