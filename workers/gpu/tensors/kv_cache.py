"""The parts of an attention's cache that no launch may use: NaN after the contexts, and numbers of pages that do not
exist in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.core.problem.ops.kv_cache import PagedCache

Array = Any  # an array of CuPy or NumPy with an element's bits

#: A number in a table that every launch has to refuse.
NO_PAGE = 2**31 - 1


def hide_rows(bits: Array, ends: Sequence[int], nan_bits: int) -> None:
    """Hides the rows after each sequence's end in a contiguous cache [sequences, KV heads, max_length, head_dim]."""
    for sequence, end in enumerate(ends):
        bits[sequence, :, end:] = nan_bits


def hide_pages(bits: Array, table: Array, ends: Sequence[int], paged: PagedCache, nan_bits: int) -> None:
    """Hides the same rows in the pages that a table [sequences, pages] assigns to each sequence."""
    heads_first = bits if paged.heads_first else bits.swapaxes(1, 2)
    for sequence, end in enumerate(ends):
        whole, rest = divmod(end, paged.page_tokens)
        if rest:
            heads_first[int(table[sequence, whole]), :, rest:] = nan_bits
        hidden = table[sequence, whole + bool(rest) :]
        if hidden.size:
            heads_first[hidden] = nan_bits


def hide_numbers(table: Array, ends: Sequence[int], paged: PagedCache) -> None:
    """Hides, in a table, the numbers of pages that hold no token of a context."""
    for sequence, end in enumerate(ends):
        table[sequence, -(-end // paged.page_tokens) :] = NO_PAGE
