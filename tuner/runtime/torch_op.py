"""`torch.ops.tuner.ffn`: an FFN of a pack as an operator of PyTorch, which torch.compile takes whole.

import tuner.runtime.torch_op as op
number = op.register(pack.bind(Weights(w1, w2, activation="silu", gated=True)))
y = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, "silu", True, number)

The weights are operands, so that a graph knows what it reads. `number` names the prepared FFN. For 0, for tensors of
the CPU and for weights that are not those of `number`, PyTorch's own products compute it. In the product this module
alone imports torch, and nothing imports this module but who calls it.
"""

from __future__ import annotations

from typing import Any

import torch

from .ffn import Ffn

_SCHEMA = (
    "ffn(Tensor x, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2, Tensor? residual, Tensor? row_scale, "
    "str activation, bool gated, int number) -> Tensor"
)
_library = torch.library.Library("tuner", "FRAGMENT")
#: By number; the first place is nobody's.
_ffns: list[Ffn | None] = [None]


def register(ffn: Ffn) -> int:
    """The number by which the operator knows a prepared FFN, from now on."""
    _ffns.append(ffn)
    return len(_ffns) - 1


def forget(number: int) -> None:
    """Lets go of an FFN; PyTorch's own products compute what still names it."""
    _ffns[number] = None


def _activate(z: torch.Tensor, activation: str) -> torch.Tensor:
    functions = torch.nn.functional
    if activation == "gelu":
        return functions.gelu(z, approximate="tanh")
    if activation == "identity":
        return z
    return functions.relu(z) if activation == "relu" else functions.silu(z)


def by_torch(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    b1: torch.Tensor | None,
    b2: torch.Tensor | None,
    residual: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    activation: str,
    gated: bool,
    number: int = 0,
) -> torch.Tensor:
    """The same by PyTorch's own products, on any device."""
    functions = torch.nn.functional
    z = functions.linear(x, w1)
    if row_scale is not None:
        z = (z * row_scale[:, None]).to(z.dtype)
    if b1 is not None:
        z = z + b1
    if gated:
        gate, up = z.chunk(2, dim=-1)
        hidden = _activate(gate, activation) * up
    else:
        hidden = _activate(z, activation)
    y = functions.linear(hidden, w2, b2)
    return y if residual is None else y + residual


def _on_cuda(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    b1: torch.Tensor | None,
    b2: torch.Tensor | None,
    residual: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    activation: str,
    gated: bool,
    number: int,
) -> torch.Tensor:
    ffn = _ffns[number]
    if ffn is None or ffn.weights.w1.data_ptr() != w1.data_ptr() or not ffn.is_kernel(x.shape[0]):
        return by_torch(x, w1, w2, b1, b2, residual, row_scale, activation, gated)
    found: torch.Tensor = ffn(x.contiguous(), residual=residual, row_scale=row_scale)
    return found


def _fake(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], w2.shape[0]))


_library.define(_SCHEMA)
_library.impl("ffn", _on_cuda, "CUDA")
_library.impl("ffn", by_torch, "CPU")
torch.library.register_fake("tuner::ffn", _fake, lib=_library)

__all__ = ["by_torch", "forget", "register"]
