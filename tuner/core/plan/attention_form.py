"""What an attention does beyond its shapes: pages of its cache, a window, a soft cap of its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.core.problem.attention import MOST_ROWS, DecodeAttention
from tuner.errors import InvalidInput

PAGE_TOKENS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class PagedCache:
    """Pages of a cache, which a table gives to sequences.

    Keys, and values, are [num_pages, kv_heads, page_tokens, head_dim] where heads come first, else [num_pages,
    page_tokens, kv_heads, head_dim]. The table is int32 [sequences, pages_of(op)], and known when a launch runs.
    """

    num_pages: int
    #: Tokens of a page: 16, 32 or 64.
    page_tokens: int
    heads_first: bool = True

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of its range, and what would be right.
        """
        if self.page_tokens not in PAGE_TOKENS:
            known = ", ".join(map(str, PAGE_TOKENS))
            raise InvalidInput("page_tokens", f"{self.page_tokens!r} has no kernel", f"give one of {known}")
        if self.num_pages < 1:
            raise InvalidInput("num_pages", f"{self.num_pages!r} pages hold nothing", "give 1 or more")

    def pages_of(self, op: DecodeAttention) -> int:
        """Pages of the longest context."""
        return -(-op.max_length // self.page_tokens)

    def shape(self, op: DecodeAttention) -> tuple[int, int, int, int]:
        """Of keys, and of values."""
        middle = (op.kv_heads, self.page_tokens) if self.heads_first else (self.page_tokens, op.kv_heads)
        return (self.num_pages, *middle, op.head_dim)


@dataclass(frozen=True, kw_only=True)
class AttentionForm:
    """The plain form reads a contiguous cache, sees all of a context, and leaves scores as they are."""

    #: None: [sequences, kv_heads, max_length, head_dim].
    paged: PagedCache | None = None
    #: Tokens that a query sees, itself included; None for all.
    window: int | None = None
    #: Scores become soft_cap * tanh(score / soft_cap); None for no cap.
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of its range, and what would be right.
        """
        if self.window is not None and self.window < 1:
            raise InvalidInput("window", f"{self.window!r} hides a query from itself", "give 1 or more, or None")
        if self.soft_cap is not None and not (math.isfinite(self.soft_cap) and self.soft_cap > 0):
            raise InvalidInput("soft_cap", f"{self.soft_cap!r} cannot cap", "give a finite number above 0, or None")

    def check_of(self, op: DecodeAttention) -> None:
        """That the cache's rows have numbers.

        Raises:
            InvalidInput: they are too many.
        """
        if self.paged is None:
            return
        rows = (self.paged.num_pages + 1) * self.paged.page_tokens * op.kv_heads
        if rows > MOST_ROWS:
            problem = f"num_pages * page_tokens * kv_heads is {rows}, and a cache has at most {MOST_ROWS} rows"
            raise InvalidInput("num_pages", problem, "give fewer")

    def first_seen(self, op: DecodeAttention, length: int) -> int:
        """The first token of a context that a new one sees."""
        return 0 if self.window is None else max(length - op.new_tokens + 1 - self.window, 0)


PLAIN = AttentionForm()
