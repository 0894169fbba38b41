"""Properties of an attention other than its shape: a paged cache, a sliding window, a soft cap on the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.core.problem.ops.kv_cache import MOST_ROWS, PagedCache, paged_for
from tuner.errors import InvalidInput
from tuner.ops.attention.shapes.shape import DecodeAttention


@dataclass(frozen=True, kw_only=True)
class AttentionForm:
    """The form of an attention; by default, it reads a contiguous cache, sees the whole context, and keeps scores as
    they are."""

    #: The cache's pages; None for a contiguous cache, [sequences, kv_heads, max_length, head_dim].
    paged: PagedCache | None = None
    #: Tokens that a query sees, including itself; None if it sees all.
    window: int | None = None
    #: Scores become soft_cap * tanh(score / soft_cap); None for no cap.
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        """Checks each field.

        Raises:
            InvalidInput: a field is out of range; the message says what is expected.
        """
        if self.window is not None and self.window < 1:
            raise InvalidInput("window", f"{self.window!r} hides a query from itself", "use 1 or more, or leave it out")
        if self.soft_cap is not None and not (math.isfinite(self.soft_cap) and self.soft_cap > 0):
            raise InvalidInput(
                "soft_cap", f"{self.soft_cap!r} is not a valid cap", "use a finite number above 0, or leave it out"
            )

    def check_of(self, op: DecodeAttention) -> None:
        """Checks that the cache's rows can be numbered.

        Raises:
            InvalidInput: there are too many rows.
        """
        if self.paged is None:
            return
        if (rows := self.paged.num_rows(op)) > MOST_ROWS:
            problem = f"num_pages * page_tokens * kv_heads is {rows}, but a cache has at most {MOST_ROWS} rows"
            raise InvalidInput("num_pages", problem, "use fewer")

    def describe(self) -> str:
        """The text after an op's sizes, e.g. ``, pages of 16, window 4096``; empty for the default form."""
        words = [] if self.paged is None else [self.paged.describe()]
        words += [] if self.window is None else [f"window {self.window}"]
        words += [] if self.soft_cap is None else [f"soft cap {self.soft_cap:g}"]
        return "".join(f", {word}" for word in words)

    @property
    def knows_tokens_early(self) -> bool:
        """Whether the first tokens that a task reads are known before its sequence's length is."""
        return self.paged is None and self.window is None

    def first_seen(self, op: DecodeAttention, length: int) -> int:
        """The first token of a context that a new token sees."""
        return 0 if self.window is None else max(length - op.new_tokens + 1 - self.window, 0)


PLAIN = AttentionForm()


def form_for(
    op: DecodeAttention,
    *,
    page_tokens: int | None = None,
    heads_first: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
) -> AttentionForm:
    """The form of an op from plain values, with enough pages for every sequence to reach the longest context.

    A window of at least the longest context hides nothing, so it is dropped.

    Raises:
        InvalidInput: a field is out of range; the message says what is expected.
    """
    paged = paged_for(op, op.sequences, page_tokens=page_tokens, heads_first=heads_first)
    checked = AttentionForm(paged=paged, window=window, soft_cap=soft_cap)
    try:
        checked.check_of(op)
    except InvalidInput as error:
        raise InvalidInput("max_length", error.problem, "use a shorter one, or fewer sequences") from error
    if window is not None and window >= op.max_length:
        return AttentionForm(paged=paged, soft_cap=soft_cap)
    return checked


def form_to_json(form: AttentionForm) -> dict[str, Any]:
    """The arguments of `form_for` that differ from the default form."""
    paged = form.paged
    pages = {} if paged is None else {"page_tokens": paged.page_tokens}
    if paged is not None and not paged.heads_first:
        pages |= {"heads_first": False}
    others = {"window": form.window, "soft_cap": form.soft_cap}
    return pages | {name: value for name, value in others.items() if value is not None}
