"""What operators check of their tensors, the same where they are fake, on the CPU and on a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch

from .native import WrongOperand
from .operands import Operand


def name_of(dtype: torch.dtype) -> str:
    """As tables of operands have it."""
    return str(dtype).removeprefix("torch.")


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
