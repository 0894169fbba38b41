"""What operators check of their tensors, the same where they are fake, on the CPU and on a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from .native import WrongOperand
from .operands import Operand


def name_of(dtype: torch.dtype) -> str:
    """As tables of operands have it."""
    return str(dtype).removeprefix("torch.")


def cache_operands(
    q_columns: Any,
    keys: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor | None,
    dtype: str,
    *,
    heads_first: bool,
) -> dict[str, Operand]:
    """Of both caches, their lengths and their table of pages, for queries of so many columns.

    Raises:
        WrongOperand: these queries cannot meet this cache.
    """
    if keys.dim() != 4:
        raise WrongOperand(f"keys have {keys.dim()} dimensions: give a cache of 4")
    if pages is None and not heads_first:
        raise WrongOperand("heads_first is False, and the cache has no pages: give True")
    kv_heads, head_dim = keys.shape[1 if heads_first else 2], keys.shape[3]
    if q_columns % (kv_heads * head_dim):
        problem = f"q has {q_columns} columns for {kv_heads} KV heads of {head_dim}"
        raise WrongOperand(f"{problem}: give heads * head_dim, as many heads to each KV head")
    sequences = lengths.shape[0]
    cache = (sequences if pages is None else "pages", *keys.shape[1:])
    found = [
        Operand(name="keys", role="cache", shape=cache, dtype=dtype),
        Operand(name="values", role="cache", shape=cache, dtype=dtype),
        Operand(name="lengths", role="lengths", shape=(sequences,), dtype=_integer(lengths)),
    ]
    if pages is not None:
        table = (sequences, "pages of a sequence")
        found.append(Operand(name="pages", role="pages", shape=table, dtype=_integer(pages)))
    return {one.name: one for one in found}


def _integer(tensor: torch.Tensor) -> str:
    """What numbers should be of: int64 are taken, and then PyTorch computes."""
    return "int64" if tensor.dtype is torch.int64 else "int32"


def check_scores(window: int, soft_cap: float) -> None:
    """That a window and a soft cap are none, or right.

    Raises:
        WrongOperand: one is neither.
    """
    if window < 0:
        raise WrongOperand(f"window is {window}: give the tokens that a query sees, or 0 for all")
    if not soft_cap >= 0:
        raise WrongOperand(f"soft_cap is {soft_cap}: give a positive number, or 0 for none")


def check_apart(written: Sequence[str], tensors: Mapping[str, torch.Tensor | None]) -> None:
    """That what is written lies apart from all other tensors, which must not be fake.

    Raises:
        WrongOperand: two overlap.
    """
    spans = {name: _span(one) for name, one in tensors.items() if one is not None and one.numel() > 0}
    for name in written:
        begin, end = spans.get(name, (0, 0))
        for other, (first, last) in spans.items():
            if other != name and begin < last and first < end:
                raise WrongOperand(f"{name} is written and overlaps {other}: give it its own")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def check(operator: str, operands: Mapping[str, Operand], tensors: Mapping[str, torch.Tensor | None]) -> None:
    """That each tensor that is there can be its operand, all lie on one device, and no gradient is asked for. The first
    of `operands` is there, and names the device.

    Raises:
        WrongOperand: one cannot; the sentence says what it should be.
        NotImplementedError: a gradient is asked for.
    """
    dims: dict[str, Any] = {}
    there = [(name, one) for name in operands if (one := tensors[name]) is not None]
    first, device = there[0][0], there[0][1].device
    for name, one in there:
        if one.layout is not torch.strided:
            raise WrongOperand(f"{name} is {one.layout}: give a dense tensor")
        operands[name].check_form(tuple(one.shape), name_of(one.dtype), dims)
        if one.device != device:
            raise WrongOperand(f"{name} lies on {one.device} and {first} on {device}: give all on one device")
        if torch.is_grad_enabled() and one.requires_grad:
            remedy = "call it under torch.inference_mode() or torch.no_grad()"
            raise NotImplementedError(f"tuner::{operator} has no gradient: {remedy}")


def at_its_own_precision(formula: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same formula where autocast is on: the result has the operands' type, as the fake one says."""

    @wraps(formula)
    def run(x: torch.Tensor, *others: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return formula(x, *others)
        with torch.autocast(x.device.type, enabled=False):
            return formula(x, *others)

    return run
