"""How operators check their tensors; the same for fake tensors, on the CPU and on a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from tuner.core.problem.dtype import UNSCALED, Dtype
from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.tensors.operands import Operand

#: Element types of kernels by name, and of those whose operands have no scales.
_OURS = {one.row.array_name: getattr(torch, one.row.array_name, None) for one in Dtype}
_PLAIN = {one.row.array_name: _OURS[one.row.array_name] for one in UNSCALED}
_INFINITE = float("inf")


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name in tables of operands."""
    return str(dtype).removeprefix("torch.")


def check_float(name: str, tensor: torch.Tensor, *, has_scales: bool = False) -> None:
    """Checks that it has a supported element type: a kernel's, or one of PyTorch's own products. `has_scales`: whether
    the operator has operands for scales, so that types of few bits are possible.

    Raises:
        WrongOperand: it has another.
    """
    known = _OURS if has_scales else _PLAIN
    if tensor.dtype not in (*known.values(), torch.float32, torch.float64):
        raise WrongOperand(f"{name} is of {name_of(tensor.dtype)}: use {' or '.join(known)}")


def check_rows(name: str, tensor: torch.Tensor, lengths: torch.Tensor) -> None:
    """Checks that the tensor has the same number of rows for each sequence, and at least one.

    Raises:
        WrongOperand: the rows cannot be divided evenly among the sequences.
    """
    rows, sequences = tensor.shape[0], lengths.shape[0]
    if sequences == 0 or rows == 0 or rows % sequences:
        raise WrongOperand(
            f"{name} has {rows} rows for {sequences} sequences: use the same number for each, at least 1"
        )


def cache_operands(
    q_columns: Any,
    keys: torch.Tensor,
    lengths: torch.Tensor,
    pages: torch.Tensor | None,
    dtype: str,
    *,
    heads_first: bool,
) -> dict[str, Operand]:
    """Operands for both caches, their lengths and their page table, for queries with `q_columns` columns.

    Raises:
        WrongOperand: these queries do not fit this cache.
    """
    if keys.dim() != 4:
        raise WrongOperand(f"keys have {keys.dim()} dimensions: pass a cache with 4")
    if pages is None and not heads_first:
        raise WrongOperand("heads_first is False, but the cache has no pages: use True")
    if not all(keys.shape):
        raise WrongOperand(
            f"keys are [{', '.join(map(str, keys.shape))}]: pass a cache with at least 1 in each dimension"
        )
    if pages is not None and pages.dim() == 2 and not pages.shape[1]:
        raise WrongOperand("pages has no page of any sequence: pass at least 1 for each")
    kv_heads, head_dim = keys.shape[1 if heads_first else 2], keys.shape[3]
    if q_columns % (kv_heads * head_dim):
        problem = f"q has {q_columns} columns for {kv_heads} KV heads of {head_dim}"
        raise WrongOperand(f"{problem}: use heads * head_dim, with the same number of heads for each KV head")
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
    """The expected integer type: int64 is accepted, and then PyTorch computes."""
    return "int64" if tensor.dtype is torch.int64 else "int32"


def check_scores(scale: float, window: int, soft_cap: float) -> None:
    """Checks that scale, window and soft cap are each unset or valid.

    Raises:
        WrongOperand: one of them is neither unset nor valid.
    """
    if not abs(scale) < _INFINITE:
        raise WrongOperand(f"scale is {scale}: pass the number that scores are multiplied by, e.g. head_dim ** -0.5")
    if window < 0:
        raise WrongOperand(f"window is {window}: pass how many tokens a query can see, or 0 for all")
    if not 0 <= soft_cap < _INFINITE:
        raise WrongOperand(f"soft_cap is {soft_cap}: use a positive number, or 0 for none")


def check_apart(written: Sequence[str], tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Checks that written tensors, which must not be fake, do not overlap any other tensor, and that their elements do
    not overlap each other. Tensors may be interleaved: keys and values in one allocation.

    Raises:
        WrongOperand: two overlap.
    """
    given = {name: one for name, one in tensors.items() if one is not None and one.numel() > 0}
    for name in written:
        one = given[name]
        if any(step == 0 for size, step in zip(one.shape, one.stride(), strict=True) if size > 1):
            raise WrongOperand(
                f"{name} is written, but several of its elements share memory: use separate memory for each"
            )
        for other, beside in given.items():
            if other != name and not _are_apart(one, beside):
                raise WrongOperand(f"{name} is written and overlaps {other}: use separate memory")


def _are_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they have no byte in common: one ends before the other begins, or one step divides all longer steps of
    both, and within each step they use different bytes."""
    begin, end = one.data_ptr(), other.data_ptr()
    if begin + _num_bytes(one) <= end or end + _num_bytes(other) <= begin:
        return True
    longer = [step for tensor in (one, other) for step in _steps(tensor)]
    for step in set(longer):
        inner, beside = (_num_bytes(tensor, within=step) for tensor in (one, other))
        between = (end - begin) % step
        if all(of % step == 0 for of in longer if of >= step) and inner <= between <= step - beside:
            return True
    return False


def _steps(tensor: torch.Tensor) -> list[int]:
    """Bytes from one element to the next, for each dimension with at least two."""
    size = tensor.element_size()
    return [step * size for count, step in zip(tensor.shape, tensor.stride(), strict=True) if count > 1 and step > 0]


def _num_bytes(tensor: torch.Tensor, within: int | None = None) -> int:
    """Bytes from the first element to the end of the last one; with `within`, only for dimensions with shorter
    steps."""
    size: int = tensor.element_size()
    counts: list[tuple[int, int]] = [*zip(tensor.shape, tensor.stride(), strict=True)]
    return size + sum((count - 1) * step * size for count, step in counts if within is None or step * size < within)


def check(operator: str, operands: Mapping[str, Operand], tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Checks that each tensor fits its operand, all are on one device, and no gradient is requested. The first of
    `operands` is present, and determines the device.

    Raises:
        WrongOperand: one does not fit; the message says what is expected.
        NotImplementedError: a gradient is requested.
    """
    dims: dict[str, Any] = {}
    there = [(name, one) for name in operands if (one := tensors[name]) is not None]
    first, device = there[0][0], there[0][1].device
    for name, one in there:
        if one.layout is not torch.strided:
            raise WrongOperand(f"{name} is {one.layout}: pass a dense tensor")
        operands[name].check_form(tuple(one.shape), name_of(one.dtype), dims)
        if one.device != device:
            raise WrongOperand(f"{name} is on {one.device} and {first} on {device}: pass all on one device")
        if torch.is_grad_enabled() and one.requires_grad:
            remedy = "call it under torch.inference_mode() or torch.no_grad()"
            raise NotImplementedError(f"tuner::{operator} has no gradient: {remedy}")


def at_its_own_precision(formula: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same formula under autocast: the result has the operands' type, like the fake one."""

    @wraps(formula)
    def run(x: torch.Tensor, *others: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return formula(x, *others)
        with torch.autocast(x.device.type, enabled=False):
            return formula(x, *others)

    return run
