"""Masking tokens of a cache, and putting its pages in order, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.reference import gathered
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.workers.gpu.tensors.kv_cache import NO_PAGE, hide_numbers, hide_pages, hide_rows

OP = DecodeAttention(sequences=3, kv_heads=2, query_heads=1, head_dim=64, max_length=70)
LENGTHS = (70, 0, 33)
HIDDEN = 0x7FFF


@pytest.mark.parametrize("heads_first", [True, False])
def test_pages_in_order_are_the_contiguous_cache_they_were_cut_from(heads_first: bool) -> None:
    paged = PagedCache(num_pages=15, page_tokens=16, heads_first=heads_first)
    rng = np.random.default_rng(0)
    whole = rng.integers(1, 1000, (3, 2, 80, 64)).astype(np.uint16)
    table = rng.permutation(15).astype(np.int32).reshape(3, 5)
    pages = np.zeros((15, 2, 16, 64), np.uint16)
    for sequence in range(3):
        for place, page in enumerate(table[sequence]):
            pages[page] = whole[sequence, :, 16 * place : 16 * place + 16]
    cache: Any = pages if heads_first else np.ascontiguousarray(pages.swapaxes(1, 2))
    hide_rows(whole, LENGTHS, HIDDEN)
    hide_pages(cache, table, LENGTHS, paged, HIDDEN)
    hide_numbers(table, LENGTHS, paged)
    assert (table[1] == NO_PAGE).all()
    assert (table == NO_PAGE).sum() == 5 + 2
    found = gathered(OP, paged, cache, table, LENGTHS, np)
    assert found.shape == (3, 2, 70, 64)
    for sequence, length in enumerate(LENGTHS):
        assert (found[sequence, :, :length] == whole[sequence, :, :length]).all()
        assert (found[sequence, :, length:] == 0).all()
    assert not (found == HIDDEN).any()
    assert (cache == HIDDEN).sum() == (5 * 16 + 10 + (2 * 16 - 1) + 16) * 2 * 64
