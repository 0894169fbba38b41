"""PyTorch's attention without a fused kernel, in parts: it supports any problem and uses little memory.

PyTorch repeats keys and values for each query head, and computes in fp32: for 64 contexts of 8192 tokens these are 8.6
GB for the keys of eight heads, and several times that in one call. Here queries that share a KV head are rows of one
product, so nothing is repeated, and few sequences are computed at a time.
"""

from __future__ import annotations

from typing import Any

#: Maximum size of a part's keys in fp32, unless one sequence has more.
PART_BYTES = 2**28
_FP32_BYTES = 4


def attend_in_parts(torch: Any, tensors: tuple[Any, Any, Any], mask: Any, scale: float, most: int = PART_BYTES) -> Any:
    """[sequences, new tokens, heads, head_dim], like the queries. `tensors` are queries, keys and values [sequences,
    KV heads, tokens, head_dim]; `mask` [sequences, 1, new tokens, tokens] says what a query sees; None if it
    sees everything. `most` limits the size of a part, in bytes."""
    q, keys, _ = tensors
    count = max(1, most // (_FP32_BYTES * keys[0].numel()))
    parts = (slice(at, at + count) for at in range(0, len(q), count))
    found = []
    for part in parts:
        q, keys, values = (one[part] for one in tensors)
        found.append(_attend(torch, q, keys, values, None if mask is None else mask[part], scale))
    return torch.cat(found)


def _attend(torch: Any, q: Any, keys: Any, values: Any, mask: Any, scale: float) -> Any:
    sequences, tokens, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    # The rows are a group's heads for the first token, then for the next.
    by_group = (sequences, tokens, kv_heads, heads // kv_heads, head_dim)
    rows = q.view(by_group).transpose(1, 2).reshape(sequences, kv_heads, -1, head_dim)
    if mask is not None:
        mask = mask.repeat_interleave(heads // kv_heads, dim=2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)
    return out.view(sequences, kv_heads, tokens, -1, head_dim).transpose(1, 2).reshape(q.shape)
