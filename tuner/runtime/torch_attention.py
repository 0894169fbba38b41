"""`torch.ops.tuner.attention_proj`: decode attention and its projection as an operator that torch.compile treats as a
whole.

import tuner.runtime.torch_attention as op
op.register(load_attention("best.zip"))   # once; all layers of a model may share it
y = torch.ops.tuner.attention_proj(q, keys, values, lengths, pages, w, True, scale, 0, 0.0)

`q` is [sequences * new tokens, heads * head_dim], with the last tokens of each sequence. A contiguous cache is
[sequences, KV heads, longest context, head_dim]. A paged one is [pages, KV heads, page tokens, head_dim], and without
`heads_first` [pages, page tokens, KV heads, head_dim]; `pages` is its table, int32. A window of 0 means no window, and
a soft cap of 0 no cap. Without `w` there is no projection. All have one element type, except lengths and pages.
Operands that do not fit are refused, when a graph is traced, on the CPU and on a card alike. Registered kernels are
found by shapes, element types and options, and `number` chooses among equals. If there is none, and for tensors on the
CPU, PyTorch's own operators compute it. It is for inference only: there is no gradient. Call it once before a capture.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from tuner.core.problem.dtype import Dtype
from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.programs.attention import Attention
from tuner.runtime.pytorch.formula import attend, product
from tuner.runtime.pytorch.found import Found
from tuner.runtime.pytorch.operands import (
    at_its_own_precision,
    cache_operands,
    check,
    check_float,
    check_rows,
    check_scores,
    name_of,
)
from tuner.runtime.tensors.operands import Operand

_SCHEMA = (
    "(Tensor q, Tensor keys, Tensor values, Tensor lengths, Tensor? pages, Tensor? w, bool heads_first, float scale, "
    "int window, float soft_cap, int number=0) -> Tensor"
)
_library = torch.library.Library("tuner", "FRAGMENT")
_DTYPES = {str(one): getattr(torch, one.row.array_name, None) for one in Dtype}


_registered = Found[Attention]()


def register(attention: Attention) -> int:
    """Registers it with the operator; returns a number that distinguishes it from others with its shapes and
    options."""
    op, name = attention.op, attention.op["name"]
    options = (
        bool(op.get("heads_first", True)),
        float(op.get("scale") or op["head_dim"] ** -0.5),
        int(op.get("window") or 0),
        float(op.get("soft_cap") or 0.0),
    )
    shapes = [op["source"], f"{name}.lengths", f"{name}.keys", f"{name}.pages", f"{attention.output}.w"]
    there = [attention.shape(one) if one in attention.tensors else None for one in shapes]
    dtype = _DTYPES[attention.artifact.manifest["workload"]["dtype"]]
    return _registered.add(_key(there, options, dtype), attention)


def _key(shapes: Sequence[tuple[int, ...] | None], options: tuple[Any, ...], dtype: torch.dtype | None) -> Hashable:
    """The key for all tensors. A paged cache may have any number of pages; None: no such tensor."""
    q, lengths, cache, pages, w = shapes
    assert cache is not None
    return q, lengths, cache[0 if pages is None else 1 :], pages, w, options, dtype


def forget(number: int) -> None:
    """Unregisters it; PyTorch's own operators then compute its calls."""
    _registered.forget(number)


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
    """The result by PyTorch's own operators, on any device. Scores and weights are at least float32."""
    of = {"heads_first": heads_first, "scale": scale, "window": window, "soft_cap": soft_cap}
    rows = attend(q, keys, values, lengths, pages, **of)  # type: ignore[arg-type]
    return rows if w is None else product(rows, w)


def _check(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, *others: Any) -> None:
    """Checks that all fit together, and no gradient is requested. `others` are the remaining arguments of the
    schema, here and below."""
    pages, w, heads_first, scale, window, soft_cap, *_ = others
    if q.dim() != 2 or keys.dim() != 4 or lengths.dim() != 1:
        problem = f"q, keys and lengths have {q.dim()}, {keys.dim()} and {lengths.dim()} dimensions"
        raise WrongOperand(f"{problem}: pass [rows, heads * head_dim], a cache of 4 dimensions, [sequences]")
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
    """The operator on a card, with the registered kernels if they accept these operands."""
    pages, w, options, number = others[0], others[1], others[2:6], others[6:]
    _check(q, keys, values, lengths, *others)
    given = (q, lengths, keys, pages, w)
    shapes = [None if one is None else tuple(one.shape) for one in given]
    fitting = _registered.of(_key(shapes, options, q.dtype), *number) if _is_plain(*given, values) else iter(())
    if (known := next(fitting, None)) is None:
        return by_torch(q, keys, values, lengths, *others)
    found: torch.Tensor = known(q, keys, values, lengths, pages, w)
    return found


def _is_plain(q: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether all are contiguous, with 32-bit numbers: everything else was checked before."""
    lengths, _, pages, *_ = others
    numbers = [one for one in (lengths, pages) if one is not None]
    is_narrow = all(one.dtype is torch.int32 for one in numbers)
    return is_narrow and all(one.is_contiguous() for one in (q, *others) if one is not None)


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
