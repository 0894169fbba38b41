"""`torch.ops.tuner.attention_proj`: decode attention and its projection as an operator that torch.compile takes whole.

import tuner.runtime.torch_attention as op
number = op.register(load_attention("best.zip"))   # once; all layers of a model may share it
y = torch.ops.tuner.attention_proj(q, keys, values, lengths, pages, w, True, scale, 0, 0.0, number)

`q` is [sequences * new tokens, heads * head_dim], of each sequence the last tokens of its length. A contiguous cache is
[sequences, KV heads, longest context, head_dim]. A paged one is [pages, KV heads, page tokens, head_dim], and without
`heads_first` [pages, page tokens, KV heads, head_dim]; `pages` is its table, int32. A window of 0 hides nothing, and a
soft cap of 0 caps nothing. Without `w` there is no projection. All have one element type, but lengths and pages. What
does not fit is refused, when a graph is traced, on the CPU and on a card alike. `number` names what was registered. For
0, for tensors of the CPU, and for shapes or options that are not those of `number`, PyTorch's own operators compute it.
It is for inference: there is no gradient. A first call belongs in front of a capture.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from tuner.core.problem.dtype import Dtype

from .attention import Attention
from .native import WrongOperand
from .operands import Operand
from .torch_operands import (
    at_its_own_precision,
    cache_operands,
    check,
    check_float,
    check_rows,
    check_scores,
    name_of,
)

_SCHEMA = (
    "(Tensor q, Tensor keys, Tensor values, Tensor lengths, Tensor? pages, Tensor? w, bool heads_first, float scale, "
    "int window, float soft_cap, int number) -> Tensor"
)
_library = torch.library.Library("tuner", "FRAGMENT")
_DTYPES = {str(one): getattr(torch, one.row.array_name, None) for one in Dtype}


@dataclass(frozen=True, kw_only=True)
class _Registered:
    """What is launched, and for which operands."""

    attention: Attention
    #: Heads first, scale, window, soft cap.
    options: tuple[bool, float, int, float]
    #: Of q, lengths, one cache, pages and w. A cache of pages has any number of them; None is not there.
    shapes: tuple[tuple[int, ...] | None, ...]
    dtype: torch.dtype


#: By number.
_registered: dict[int, _Registered] = {}
_numbers = itertools.count(1)


def register(attention: Attention) -> int:
    """The number by which the operator knows it, from now on."""
    op, name = attention.op, attention.op["name"]
    options = (
        bool(op.get("heads_first", True)),
        float(op.get("scale") or op["head_dim"] ** -0.5),
        int(op.get("window") or 0),
        float(op.get("soft_cap") or 0.0),
    )
    has_pages = attention.page_tokens > 0
    cache = attention.shape(f"{name}.keys")
    shapes = (
        attention.shape(op["source"]),
        attention.shape(f"{name}.lengths"),
        cache[1:] if has_pages else cache,
        attention.shape(f"{name}.pages") if has_pages else None,
        attention.shape(f"{attention.output}.w") if attention.product else None,
    )
    dtype = _DTYPES[attention.artifact.manifest["workload"]["dtype"]]
    number = next(_numbers)
    _registered[number] = _Registered(attention=attention, options=options, shapes=shapes, dtype=dtype)
    return number


def forget(number: int) -> None:
    """Lets go of it; PyTorch's own operators compute what still names it."""
    _registered.pop(number, None)


@at_its_own_precision
def by_torch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor | None,
    w: torch.Tensor | None,
    heads_first: bool,
    scale: float,
    window: int,
    soft_cap: float,
    number: int = 0,
) -> torch.Tensor:
    """The same by PyTorch's own operators, on any device. Scores and weights are at least float32."""
    k, v = (_contexts(cache, pages, heads_first) for cache in (keys, values))
    sequences, kv_heads, longest, head_dim = k.shape
    new_tokens = q.shape[0] // sequences
    wide = torch.promote_types(q.dtype, torch.float32)
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
    nobody_sees = ~is_seen.any(dim=1)[:, None, :, None]  # what lies there may be anything, NaN too
    attended = torch.einsum("snhgl,shld->snhgd", weights, v.to(wide).masked_fill(nobody_sees, 0))
    rows = attended.reshape(q.shape).to(q.dtype)
    return rows if w is None else torch.nn.functional.linear(rows, w)


def _contexts(cache: torch.Tensor, pages: torch.Tensor | None, heads_first: bool) -> torch.Tensor:
    """[sequences, KV heads, tokens, head_dim]."""
    if pages is None:
        return cache
    rows = cache[pages.clamp(0, cache.shape[0] - 1).long()]  # numbers behind a context may be none
    ordered = rows.transpose(1, 2) if heads_first else rows.permute(0, 3, 1, 2, 4)
    sequences, kv_heads = ordered.shape[:2]
    return ordered.reshape(sequences, kv_heads, -1, cache.shape[-1])


def _check(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, *others: Any) -> None:
    """That all can meet, and no gradient is asked for. `others` are those of the schema, all of them; so in what
    follows."""
    pages, w, heads_first, scale, window, soft_cap, _ = others
    if q.dim() != 2 or keys.dim() != 4 or lengths.dim() != 1:
        problem = f"q, keys and lengths have {q.dim()}, {keys.dim()} and {lengths.dim()} dimensions"
        raise WrongOperand(f"{problem}: give [rows, heads * head_dim], a cache of 4 dimensions, [sequences]")
    check_rows("q", q, lengths)
    check_float("q", q)
    check_scores(scale, window, soft_cap)
    dtype, columns = name_of(q.dtype), q.shape[1]
    operands = {
        "q": Operand(name="q", role="input", shape=("rows", columns), dtype=dtype),
        **cache_operands(columns, keys, lengths, pages, dtype, heads_first=heads_first),
        "w": Operand(name="w", role="weight", shape=("d_out", columns), dtype=dtype),
    }
    tensors = {"q": q, "keys": keys, "values": values, "lengths": lengths, "pages": pages, "w": w}
    check("attention_proj", operands, tensors)


def _checked_by_torch(q: torch.Tensor, *others: Any) -> torch.Tensor:
    _check(q, *others)
    return by_torch(q, *others)


def _on_cuda(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, *others: Any
) -> torch.Tensor:
    """The same on a card, by the kernels that were registered, where these are their operands."""
    pages, w, *options, number = others
    _check(q, keys, values, lengths, *others)
    known = _registered.get(number)
    if known is None or not _is_its(known, (q, keys, values, lengths, pages, w), tuple(options)):
        return by_torch(q, keys, values, lengths, *others)
    found: torch.Tensor = known.attention(q, keys, values, lengths, pages, w)
    return found


def _is_its(known: _Registered, operands: tuple[torch.Tensor | None, ...], options: tuple[Any, ...]) -> bool:
    q, keys, values, lengths, pages, w = operands
    shapes = [None if one is None else tuple(one.shape) for one in (q, lengths, keys, pages, w)]
    if pages is not None and shapes[2] is not None:
        shapes[2] = shapes[2][1:]
    of_type = [one for one in (q, keys, values, w) if one is not None]
    numbers = [one for one in (lengths, pages) if one is not None]
    return (
        tuple(shapes) == known.shapes
        and options == known.options
        and keys is not None
        and values is not None
        and keys.shape == values.shape
        and all(one.dtype is known.dtype for one in of_type)
        and all(one.dtype is torch.int32 for one in numbers)
        and all(one.is_contiguous() for one in (*of_type, *numbers))
    )


def _fake(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, *others: Any
) -> torch.Tensor:
    _check(q, keys, values, lengths, *others)
    w = others[1]
    return q.new_empty((q.shape[0], q.shape[1] if w is None else w.shape[0]))


_library.define("attention_proj" + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
_library.impl("attention_proj", _checked_by_torch, "CPU")
_library.impl("attention_proj", _on_cuda, "CUDA")
torch.library.register_fake("tuner::attention_proj", _fake, lib=_library)

__all__ = ["by_torch", "forget", "register"]
