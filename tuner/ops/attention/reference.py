"""The correct results of decode attention: softmax and sums in float64, on arrays of NumPy or CuPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.ops.attention.shapes.form import PLAIN, AttentionForm
from tuner.ops.attention.shapes.shape import DecodeAttention

Array = Any  # an array of NumPy or CuPy


class Attended(NamedTuple):
    """The correct results of an attention, and the rounding error that is allowed."""

    #: [sequences, new tokens, heads, head_dim] float64; zeros if a query sees no token.
    values: Array
    #: In the same shape, the square root of the sum of (weight * value)^2, to which the sum of the weights' rounding
    #: errors is proportional.
    deviation: Array
    #: In the same shape, the sum of weight * |value|, by which a common error of all weights is multiplied.
    magnitude: Array


def attention(
    op: DecodeAttention,
    q: Array,
    k: Array,
    v: Array,
    lengths: Sequence[int],
    xp: Any,
    form: AttentionForm = PLAIN,
) -> Array:
    """The values alone, for operands in float64."""
    return attend(op, q, k, v, lengths, xp, form=form).values


def attend(
    op: DecodeAttention,
    q: Array,
    k: Array,
    v: Array,
    lengths: Sequence[int],
    xp: Any,
    form: AttentionForm = PLAIN,
    widen: Callable[[Array], Array] = lambda array: array,
) -> Attended:
    """Results in float64.

    Args:
        op: shapes and scale.
        q: [sequences, new tokens, heads, head_dim].
        k: [sequences, KV heads, max_length, head_dim].
        v: same as `k`.
        lengths: the length of each sequence, including its new tokens.
        xp: the module of the arrays, `numpy` or `cupy`.
        form: window and soft cap. For a paged cache, pass the result of `gathered`.
        widen: converts a part of an operand to float64, so that a cache is never converted as a whole.
    """
    found = Attended(*(xp.zeros(q.shape, dtype=xp.float64) for _ in Attended._fields))
    for sequence, length in enumerate(lengths):
        for token in range(op.new_tokens):
            seen = length - op.new_tokens + 1 + token
            if seen <= 0:
                continue
            queries = widen(q[sequence, token]).reshape(op.kv_heads, op.query_heads, op.head_dim)
            first = 0 if form.window is None else max(seen - form.window, 0)
            scores = op.score_scale * xp.matmul(queries, widen(k[sequence, :, first:seen]).swapaxes(1, 2))
            if form.soft_cap is not None:
                scores = form.soft_cap * xp.tanh(scores / form.soft_cap)
            weights = xp.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            values = widen(v[sequence, :, first:seen])
            rows = (
                xp.matmul(weights, values),
                xp.sqrt(xp.matmul(weights**2, values**2)),
                xp.matmul(weights, xp.abs(values)),
            )
            for whole, row in zip(found, rows, strict=True):
                whole[sequence, token] = row.reshape(whole[sequence, token].shape)
    return found


def gathered(
    op: DecodeAttention, paged: PagedCache, cache: Array, table: Array, lengths: Sequence[int], xp: Any
) -> Array:
    """A paged cache as [sequences, KV heads, max_length, head_dim]; zeros after the lengths.

    Args:
        op: shapes.
        paged: the cache's pages.
        cache: `paged.shape(op)`.
        table: page numbers of each sequence, [sequences, pages of the longest context].
        lengths: the length of each sequence.
        xp: the module of the arrays.
    """
    ends = xp.asarray(lengths)
    begins = paged.page_tokens * xp.arange(paged.pages_of(op))
    pages = xp.where(begins < ends[:, None], table, 0)  # other entries may not be valid numbers
    heads_first = cache if paged.heads_first else cache.swapaxes(1, 2)
    rows = heads_first[pages].swapaxes(1, 2).reshape(op.sequences, op.kv_heads, -1, op.head_dim)
    is_seen = xp.arange(op.max_length) < ends[:, None]
    return xp.where(is_seen[:, None, :, None], rows[:, :, : op.max_length], cache.dtype.type(0))
