"""The computation of ops with PyTorch's own operators, on any device; used if no kernel was prepared, and for
comparison."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tuner.core.problem.activation import canonical
from tuner.core.problem.epilogue.part import Stage


def product(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    row_scale: torch.Tensor | None = None,
    activation: str = "identity",
    gated: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(row_scale X W^T + bias) + residual; gated with the gate's rows of W above the up projection's."""
    functions = torch.nn.functional
    if row_scale is None:
        z = functions.linear(x, w, bias)
    else:
        z = (functions.linear(x, w) * row_scale[:, None]).to(x.dtype)
        z = z if bias is None else z + bias
    y = activated(z, activation, gated=gated)
    return y if residual is None else y + residual.contiguous()


def wide_product(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    row_scale: torch.Tensor | None = None,
    activation: str = "identity",
    gated: bool = False,
    residual: torch.Tensor | None = None,
    applied: Callable[[Stage, torch.Tensor], torch.Tensor],
    stored: torch.dtype,
) -> torch.Tensor:
    """Same as `product`, for elements of few bits: in at least float32, with everything else that is `applied` at each
    stage. Values beyond the largest element of few bits saturate to it."""
    wide = torch.float32 if x.dtype.itemsize == 1 else _wide(x)
    z = applied(Stage.SUMS, torch.nn.functional.linear(x.to(wide), w.to(wide)))
    z = z if row_scale is None else z * row_scale[:, None]
    y = applied(Stage.OUTPUT, activated(z if bias is None else z + bias, activation, gated=gated))
    y = applied(Stage.RESULT, y if residual is None else y + residual)
    if stored.itemsize == 1:  # PyTorch would make it NaN
        y = y.clamp(torch.finfo(stored).min, torch.finfo(stored).max)
    return y.to(stored)


def activated(z: torch.Tensor, activation: str, *, gated: bool) -> torch.Tensor:
    """The activated sums; if gated, the gate's columns come before the up projection's."""
    gate, *up = z.chunk(2, dim=-1) if gated else (z,)
    y: torch.Tensor = canonical(activation).row.torch(torch.nn.functional, gate)
    return y * up[0] if up else y


def normed(rows: torch.Tensor, squares: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Rows divided by their root mean square. `squares` are the sums of their squares, with padding after them;
    computed here if None."""
    wide = rows.to(_wide(rows))
    sums = squares_of(rows) if squares is None else squares[: rows.shape[0]].to(wide.dtype)
    return (wide * torch.rsqrt(sums / rows.shape[1] + eps)[:, None]).to(rows.dtype)


def squares_of(rows: torch.Tensor) -> torch.Tensor:
    """The sums of squares of the rows, by two kernels, without a temporary as wide as the rows."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=_wide(rows)).square_()


def _wide(rows: torch.Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor | None,
    *,
    heads_first: bool,
    scale: float,
    window: int,
    soft_cap: float,
) -> torch.Tensor:
    """Decode attention: rows like those of q. Scores and weights are at least float32."""
    k, v = (_contexts(cache, pages, heads_first) for cache in (keys, values))
    sequences, kv_heads, longest, head_dim = k.shape
    new_tokens, wide = q.shape[0] // sequences, _wide(q)
    queries = q.view(sequences, new_tokens, kv_heads, -1, head_dim).to(wide)
    places = torch.arange(longest, device=q.device)
    ends = lengths.clamp(0, longest)[:, None] - new_tokens + 1 + torch.arange(new_tokens, device=q.device)
    is_seen = places < ends[..., None]  # [sequences, new tokens, tokens]
    if window > 0:
        is_seen = is_seen & (places >= ends[..., None] - window)
    scores = scale * torch.einsum("snhgd,shld->snhgl", queries, k.to(wide))
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    hidden = ~is_seen[:, :, None, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1).masked_fill(hidden, 0)
    nobody_sees = ~is_seen.any(dim=1)[:, None, :, None]  # the values there are arbitrary, possibly NaN
    attended = torch.einsum("snhgl,shld->snhgd", weights, v.to(wide).masked_fill(nobody_sees, 0))
    return attended.reshape(q.shape).to(q.dtype)


def _contexts(cache: torch.Tensor, pages: torch.Tensor | None, heads_first: bool) -> torch.Tensor:
    """[sequences, KV heads, tokens, head_dim]."""
    if pages is None:
        return cache
    rows = cache[pages.clamp(0, cache.shape[0] - 1).long()]  # numbers after the end of a context may be invalid
    ordered = rows.transpose(1, 2) if heads_first else rows.permute(0, 3, 1, 2, 4)
    sequences, kv_heads = ordered.shape[:2]
    return ordered.reshape(sequences, kv_heads, -1, cache.shape[-1])


def turned(
    qkv: torch.Tensor,
    frequencies: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor | None,
    *,
    heads_first: bool,
) -> torch.Tensor:
    """The queries of new tokens; their keys and values are written to the caches. `qkv` has the first halves of all
    heads first. A token before its sequence, or after the cache's end, is not stored."""
    half, rows = frequencies.shape[0], qkv.shape[0]
    kv_heads = keys.shape[1 if heads_first else 2]
    page_tokens = keys.shape[2 if heads_first else 1]
    wide = qkv.to(_wide(qkv)).view(rows, 2, -1, half).transpose(1, 2)  # [rows, all heads, halves, pairs]
    new_tokens = rows // lengths.shape[0]
    token = torch.arange(rows, device=qkv.device)
    sequence, places = token // new_tokens, lengths[token // new_tokens] - new_tokens + token % new_tokens
    angles = places[:, None].to(torch.float32) * frequencies
    cos, sin = (angle[:, None].to(wide.dtype) for angle in (angles.cos(), angles.sin()))
    first, second = wide[:, :, 0], wide[:, :, 1]
    of_heads = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(qkv.dtype)
    plain = wide.reshape(rows, -1, 2 * half).to(qkv.dtype)
    new_keys, new_values = of_heads[:, -2 * kv_heads : -kv_heads], plain[:, -kv_heads:]
    longest = keys.shape[2] if pages is None else pages.shape[1] * page_tokens
    is_kept, at, line = (places >= 0) & (places < longest), sequence, places.clamp(min=0).long()
    if pages is not None:
        page = (line // page_tokens).clamp(max=pages.shape[1] - 1)
        at, line = pages[sequence, page].long(), line % page_tokens
        is_kept = is_kept & (at >= 0) & (at < keys.shape[0])
        at = at.clamp(0, keys.shape[0] - 1)
    else:
        line = line.clamp(max=longest - 1)
    for cache, new in ((keys, new_keys), (values, new_values)):  # other lines of the cache are unchanged
        view = cache if pages is None or heads_first else cache.transpose(1, 2)
        heads = torch.arange(view.shape[1], device=cache.device)
        index = (at[:, None], heads[None], line[:, None])
        view[index] = torch.where(is_kept[:, None, None], new, view[index])
    return of_heads[:, : -2 * kv_heads].reshape(rows, -1)


def halves_first(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of heads (or the elements of a bias) in the order of a rotated product: the first halves of all heads,
    then the second halves. A copy."""
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
