"""A cache of keys and values, for all ops that read or write it: its number of rows, and its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.errors import InvalidInput

HEAD_DIMS = (64, 128)
MOST_NEW_TOKENS = 8
#: Tokens of a cache are rows of a tensor map, whose coordinates have 31 bits.
MOST_ROWS = 2**31 - 1
PAGE_TOKENS = (16, 32, 64)
#: Suffixes of an op's tensor names: both caches, and also the sequences' int32 lengths and, for a paged cache, the
#: int32 table of its pages.
CACHES = ("keys", "values")
OF_CACHE = (*CACHES, "lengths", "pages")


class CacheSizes(Protocol):
    """The sizes that determine a cache's rows."""

    @property
    def kv_heads(self) -> int:
        """Number of key heads, and of value heads."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest context."""


@dataclass(frozen=True, kw_only=True)
class PagedCache:
    """Pages of a cache, which a table assigns to sequences.

    Keys, and values, are [num_pages, kv_heads, page_tokens, head_dim] if heads come first, otherwise [num_pages,
    page_tokens, kv_heads, head_dim]. The table is int32 [sequences, pages_of(op)], and read when a launch runs.
    """

    #: Number of pages of the cache; a launch may use a different number.
    num_pages: int
    #: Tokens per page: 16, 32 or 64.
    page_tokens: int
    #: Whether a page's heads come before its tokens.
    heads_first: bool = True

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of range, with what would be valid.
        """
        if self.page_tokens not in PAGE_TOKENS:
            known = ", ".join(map(str, PAGE_TOKENS))
            raise InvalidInput(
                "page_tokens", f"{self.page_tokens!r} is not supported by any kernel", f"use one of {known}"
            )
        if self.num_pages < 1:
            raise InvalidInput("num_pages", f"{self.num_pages!r} pages have no room", "use 1 or more")

    def pages_of(self, op: CacheSizes) -> int:
        """Pages of the longest context."""
        return -(-op.max_length // self.page_tokens)

    def shape(self, op: CacheSizes) -> tuple[int, int, int, int]:
        """Shape of keys, and of values."""
        middle = (op.kv_heads, self.page_tokens) if self.heads_first else (self.page_tokens, op.kv_heads)
        return (self.num_pages, *middle, op.head_dim)

    def num_rows(self, op: CacheSizes) -> int:
        """Rows per head that a kernel counts: those of all pages, plus one dummy page after them."""
        return (self.num_pages + 1) * self.page_tokens * op.kv_heads

    def describe(self) -> str:
        """E.g. ``pages of 16, tokens first``."""
        return f"pages of {self.page_tokens}{'' if self.heads_first else ', tokens first'}"


class WrittenCache(CacheSizes, Protocol):
    """The cache of an op that writes to it."""

    @property
    def heads(self) -> int:
        """Number of query heads."""

    @property
    def new_tokens(self) -> int:
        """New tokens per sequence; these are the op's rows."""

    @property
    def page_tokens(self) -> int | None:
        """Tokens per page; None for a contiguous cache."""

    @property
    def heads_first(self) -> bool:
        """Whether a page's heads come before its tokens."""

    def num_sequences(self, rows: int) -> int:
        """Number of sequences for `rows` new tokens."""

    def paged(self, rows: int) -> PagedCache | None:
        """The pages of a cache for `rows` new tokens; None for a contiguous cache."""


def paged_for(op: CacheSizes, sequences: int, *, page_tokens: int | None, heads_first: bool) -> PagedCache | None:
    """Enough pages for the longest contexts of `sequences` sequences; None for a contiguous cache.

    Raises:
        InvalidInput: there are no pages of this size, or an order is given without pages.
    """
    if page_tokens is None:
        if not heads_first:
            problem = "a contiguous cache is [sequences, kv_heads, max_length, head_dim]: heads come before tokens"
            raise InvalidInput("heads_first", problem, "set page_tokens too, or leave it out")
        return None
    one = PagedCache(num_pages=1, page_tokens=page_tokens, heads_first=heads_first)
    return PagedCache(num_pages=sequences * one.pages_of(op), page_tokens=page_tokens, heads_first=heads_first)
