"""What decode attention must give: softmax and sums in float64, on arrays of NumPy or of CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.core.plan.attention_form import PLAIN, AttentionForm, PagedCache
from tuner.core.problem.attention import DecodeAttention

Array = Any  # of NumPy or of CuPy


def attention(
    op: DecodeAttention,
    q: Array,
    k: Array,
    v: Array,
    lengths: Sequence[int],
    xp: Any,
    form: AttentionForm = PLAIN,
) -> Array:
    """Results as [sequences, new tokens, heads, head_dim], in float64; zeros where a query sees no token.

    Args:
        op: shapes and scale.
        q: [sequences, new tokens, heads, head_dim], float64 as all operands.
        k: [sequences, KV heads, max_length, head_dim].
        v: the same.
        lengths: of each sequence, its new tokens included.
        xp: the module of the arrays, `numpy` or `cupy`.
        form: window and soft cap. Of a paged cache give what `gathered` makes of it.
    """
    out = xp.zeros(q.shape, dtype=xp.float64)
    for sequence, length in enumerate(lengths):
        for token in range(op.new_tokens):
            seen = length - op.new_tokens + 1 + token
            if seen <= 0:
                continue
            queries = q[sequence, token].reshape(op.kv_heads, op.query_heads, op.head_dim)
            first = 0 if form.window is None else max(seen - form.window, 0)
            scores = op.score_scale * xp.matmul(queries, k[sequence, :, first:seen].swapaxes(1, 2))
            if form.soft_cap is not None:
                scores = form.soft_cap * xp.tanh(scores / form.soft_cap)
            weights = xp.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            out[sequence, token] = xp.matmul(weights, v[sequence, :, first:seen]).reshape(out[sequence, token].shape)
    return out


def gathered(
    op: DecodeAttention, paged: PagedCache, cache: Array, table: Array, lengths: Sequence[int], xp: Any
) -> Array:
    """A paged cache as [sequences, KV heads, max_length, head_dim]; zeros behind the lengths.

    Args:
        op: shapes.
        paged: the cache's pages.
        cache: `paged.shape(op)`.
        table: of each sequence its page numbers, [sequences, pages of the longest context].
        lengths: of each sequence.
        xp: the module of the arrays.
    """
    heads_first = cache if paged.heads_first else cache.swapaxes(1, 2)
    found = xp.zeros((op.sequences, op.kv_heads, op.max_length, op.head_dim), dtype=cache.dtype)
    for sequence, length in enumerate(lengths):
        for begin in range(0, length, paged.page_tokens):
            end = min(begin + paged.page_tokens, length)
            page = heads_first[int(table[sequence, begin // paged.page_tokens])]
            found[sequence, :, begin:end] = page[:, : end - begin]
    return found
