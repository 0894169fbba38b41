"""What decode attention must give: softmax and sums in float64, on arrays of NumPy or of CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.core.problem.attention import DecodeAttention

Array = Any  # of NumPy or of CuPy


def attention(op: DecodeAttention, q: Array, k: Array, v: Array, lengths: Sequence[int], xp: Any) -> Array:
    """Results as [sequences, new tokens, heads, head_dim], in float64; zeros where a query sees no token.

    Args:
        op: shapes and scale.
        q: [sequences, new tokens, heads, head_dim], float64 as all operands.
        k: [sequences, KV heads, max_length, head_dim].
        v: the same.
        lengths: of each sequence, its new tokens included.
        xp: the module of the arrays, `numpy` or `cupy`.
    """
    out = xp.zeros(q.shape, dtype=xp.float64)
    for sequence, length in enumerate(lengths):
        for token in range(op.new_tokens):
            seen = length - op.new_tokens + 1 + token
            if seen <= 0:
                continue
            queries = q[sequence, token].reshape(op.kv_heads, op.query_heads, op.head_dim)
            scores = op.score_scale * xp.matmul(queries, k[sequence, :, :seen].swapaxes(1, 2))
            weights = xp.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            out[sequence, token] = xp.matmul(weights, v[sequence, :, :seen]).reshape(out[sequence, token].shape)
    return out
