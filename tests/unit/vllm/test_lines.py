"""The rows of an attention's tensor maps address the elements of vLLM's packed blocks if lines are twice as long.

The arithmetic of ``request_attention.cuh`` is repeated here in Python. No kernel is launched over such a cache yet.
"""

from __future__ import annotations

import itertools

import pytest

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.schedule import AttentionTiling
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import cache_map
from tuner.vllm.attention import Steps, dense

#: Elements of a line in a row, as in a tensor map.
_LINE = 64
OP = DecodeAttention(
    sequences=3, max_length=64, kv_heads=4, query_heads=2, head_dim=128, new_tokens=1, dtype=Dtype.BF16
)
TILING = AttentionTiling(head_dim=128, columns=8, tile_tokens=64, num_stages=2, math_warps=4)


def by_steps(steps: Steps, page: int, token: int, head: int) -> int:
    """The address of the first element of a token in a head."""
    return page * steps.block + head * steps.head + token * steps.token


def by_map(paged: PagedCache, line: int, page: int, token: int, head: int) -> int:
    """Same as `by_steps`, computed as the kernel does: from `row_of` and the head's lines. Lines are `line` times as
    long as in our caches."""
    row_bytes, line_bytes = cache_map(OP, TILING, paged).strides_bytes
    per_page = paged.page_tokens * (OP.kv_heads if paged.heads_first else 1)
    row = page * per_page + (head * paged.page_tokens if paged.heads_first else 0) + token
    lines = 0 if paged.heads_first else head * line * OP.head_dim // _LINE
    return (row * line * row_bytes + lines * line_bytes) // OP.dtype.size_bytes


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("line", [1, 2])
def test_a_maps_rows_lead_to_the_elements_of_dense_and_of_packed_pages(heads_first: bool, line: int) -> None:
    paged = PagedCache(num_pages=5, page_tokens=16, heads_first=heads_first)
    steps = dense(OP.kv_heads, paged.page_tokens, line * OP.head_dim, heads_first=heads_first)
    for page, token, head in itertools.product(range(5), (0, 1, 15), range(OP.kv_heads)):
        assert by_map(paged, line, page, token, head) == by_steps(steps, page, token, head)


def test_with_our_own_lines_they_do_not() -> None:
    paged = PagedCache(num_pages=5, page_tokens=16, heads_first=False)
    packed = dense(OP.kv_heads, paged.page_tokens, 2 * OP.head_dim, heads_first=False)
    assert by_map(paged, 1, 1, 1, 1) != by_steps(packed, 1, 1, 1)
