"""`torch.ops.tuner.ffn`: an FFN of a pack as an operator of PyTorch, which torch.compile takes whole.

import tuner.runtime.torch_op as op
number = op.register(pack.bind(Weights(w1, w2, activation="silu", gated=True)))
y = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, "silu", True, number)

The weights are operands, so that a graph knows what it reads. `number` names the prepared FFN. For 0, for tensors of
the CPU, and for operands or options that are not those of `number`, PyTorch's own products compute it. It is for
inference: there is no gradient. Where `python -m tuner.runtime.torch_compiled` was run, a call on a card runs in C++.
In the product these two modules, `torch_attention` and `torch_layer` alone import torch. Nothing imports them but who
calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import torch_compiled
from .ffn import Ffn

_SCHEMA = (
    "(Tensor x, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2, Tensor? residual, Tensor? row_scale, "
    "str activation, bool gated, int number) -> Tensor"
)
_library = torch.library.Library("tuner", "FRAGMENT")


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A prepared FFN, and what it computes."""

    ffn: Ffn
    #: Addresses of both weights and both biases; 0 for a bias that is not there.
    addresses: tuple[int, int, int, int]
    #: Activation, gated, with a residual, with a factor per row.
    options: tuple[str, bool, bool, bool]
    dtype: torch.dtype
    #: Of X, and of Y.
    columns: tuple[int, int]


#: By number; the first place is nobody's.
_prepared: list[_Prepared | None] = [None]


def register(ffn: Ffn) -> int:
    """The number by which the operator knows a prepared FFN, from now on."""
    of = ffn.weights
    addresses = (_address(of.w1), _address(of.w2), _address(of.b1), _address(of.b2))
    options = (of.activation, of.gated, of.residual, of.row_scale)
    columns = (of.d_in, of.d_out)
    _prepared.append(_Prepared(ffn=ffn, addresses=addresses, options=options, dtype=of.w1.dtype, columns=columns))
    number = len(_prepared) - 1
    if compiled is not None:
        compiled.register(number, ffn)
    return number


def forget(number: int) -> None:
    """Lets go of an FFN; PyTorch's own products compute what still names it."""
    _prepared[number] = None
    if compiled is not None:
        compiled.forget(number)


def _address(tensor: Any) -> int:
    return 0 if tensor is None else int(tensor.data_ptr())


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


def _check(x: torch.Tensor, *operands: torch.Tensor | None) -> None:
    """That it is asked for what it does: rows of X, and no gradient."""
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions: give [m, d_in], e.g. x.view(-1, x.shape[-1])")
    if torch.is_grad_enabled():
        for one in (x, *operands):
            if one is not None and one.requires_grad:
                remedy = "call it under torch.inference_mode() or torch.no_grad()"
                raise NotImplementedError(f"tuner::ffn has no gradient: {remedy}")


def _on_cpu(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    """`others` are those of the schema, all of them."""
    _check(x, w1, w2, *others[:4])
    return by_torch(x, w1, w2, *others)


def _on_cuda(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    """The same on a card, by the kernel that was prepared, where there is one for these rows."""
    b1, b2, residual, row_scale, activation, gated, number = others
    _check(x, w1, w2, b1, b2, residual, row_scale)
    known = _prepared[number]
    rows, columns = x.shape
    if (
        known is None
        or not known.ffn.is_kernel(rows)
        or known.addresses != (w1.data_ptr(), w2.data_ptr(), _address(b1), _address(b2))
        or known.options != (activation, gated, residual is not None, row_scale is not None)
    ):
        return by_torch(x, w1, w2, *others)
    d_in, d_out = known.columns
    if residual is None and row_scale is None and columns == d_in and x.dtype is known.dtype and x.is_contiguous():
        y = x.new_empty((rows, d_out))
        known.ffn.launch(rows, x.data_ptr(), y.data_ptr(), _current_stream(x.get_device()))
        return y
    added = None if residual is None else residual.contiguous()
    found: torch.Tensor = known.ffn(x.contiguous(), residual=added, row_scale=row_scale)
    return found


def _stream_by_its_object(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


#: The address of a device's current stream. PyTorch's own compiled code asks for it without an object, which takes a
#: tenth of the time.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_by_its_object)


def _fake(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    _check(x, w1, w2)
    return x.new_empty((x.shape[0], w2.shape[0]))


_library.define("ffn" + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
_library.impl("ffn", _on_cpu, "CPU")
torch.library.register_fake("tuner::ffn", _fake, lib=_library)
# What the operator in C++ calls where no kernel of ours computes these rows.
_library.define("ffn_by_torch" + _SCHEMA)
_library.impl("ffn_by_torch", by_torch, "CompositeExplicitAutograd")
#: The operator on a card in C++; None where it was not built, and then it is the one above.
compiled = torch_compiled.load()
if compiled is None:
    _library.impl("ffn", _on_cuda, "CUDA")

__all__ = ["by_torch", "compiled", "forget", "register"]
