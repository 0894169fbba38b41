"""`torch.ops.tuner.ffn`: an FFN of a pack as a PyTorch operator, which torch.compile treats as a whole.

import tuner.runtime.torch_op as op
op.register(pack.bind(Weights(w1, w2, activation="silu", gated=True)))
y = torch.ops.tuner.ffn(x, w1, w2, None, None, None, None, "silu", True)

The weights are operands, so that a graph knows its inputs. Prepared FFNs are found by their weights: by address, shape,
strides and element type. So graphs of equal layers are equal. For tensors on the CPU, and for weights, rows or options
without a prepared FFN, PyTorch's own products compute it. If several were prepared for the same weights, e.g. for
strands, `number` from `register` chooses one; otherwise the last is used. All tensors have one element type, except
`row_scale`: it is float32, and contiguous. Operands that do not fit `w1` and `w2` are refused, when a graph is traced,
on the CPU and on a card alike. `activation` is our name (``gelu`` is the tanh form), or another name of the same
function, e.g. ``gelu_pytorch_tanh``. It is for inference only: there is no gradient. After `python -m
tuner.runtime.torch_compiled`, a call on a card runs in C++. In the product, only the modules `torch_*` import torch.
Only callers import them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tuner.core.problem.activation import Activation, canonical, names_of
from tuner.errors import InvalidInput
from tuner.runtime import torch_compiled
from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.programs.ffn import Ffn
from tuner.runtime.pytorch.formula import product
from tuner.runtime.pytorch.found import Found, lie
from tuner.runtime.pytorch.operands import at_its_own_precision, check, check_float, name_of
from tuner.runtime.tensors.operands import of_ffn

_SCHEMA = (
    "(Tensor x, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2, Tensor? residual, Tensor? row_scale, "
    "str activation, bool gated, int number=0) -> Tensor"
)
_library = torch.library.Library("tuner", "FRAGMENT")


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A prepared FFN and its properties."""

    ffn: Ffn
    #: Gated, with a residual, with a factor per row.
    options: tuple[bool, bool, bool]
    #: All names of its activation.
    activations: tuple[str, ...]
    device: torch.device

    def computes(self, given: tuple[torch.Tensor | None, ...], activation: str, gated: bool) -> bool:
        """Whether its kernel may be launched on these tensors, which include its weights; `given` as in the schema.
        If not, the call may be valid or invalid."""
        x, *_, residual, row_scale = given
        assert x is not None
        of, rows = self.ffn.weights, x.shape[0] if x.dim() == 2 else 0
        return (
            self.ffn.is_kernel(rows)
            and activation in self.activations
            and self.options == (gated, residual is not None, row_scale is not None)
            and x.shape[1] == of.d_in
            and (x.dtype, x.device) == (of.w1.dtype, self.device)
            and (residual is None or _is(residual, (rows, of.d_out), x.dtype, x.device))
            and (row_scale is None or _is(row_scale, (rows,), torch.float32, x.device))
            and (row_scale is None or row_scale.is_contiguous())
            and not (torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given))
        )


def _is(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    return tensor.shape == shape and tensor.dtype is dtype and tensor.device == device


_prepared = Found[_Prepared]()


def register(ffn: Ffn) -> int:
    """Registers a prepared FFN by its weights; returns a number that distinguishes it from others with the same
    weights."""
    of = ffn.weights
    activations = names_of(Activation(of.activation))
    options = (of.gated, of.residual, of.row_scale)
    one = _Prepared(ffn=ffn, options=options, activations=activations, device=of.w1.device)
    number = _prepared.add(lie((of.w1, of.w2, of.b1, of.b2)), one)
    if compiled is not None:
        compiled.register(number, ffn, activations)
    ffn.pack.when_closed(lambda: forget(number))
    return number


def forget(number: int) -> None:
    """Unregisters an FFN; PyTorch's own products then compute calls with its weights."""
    _prepared.forget(number)
    if compiled is not None:
        compiled.forget(number)


@at_its_own_precision
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
    """The result by PyTorch's own products, on any device."""
    hidden = product(x, w1, b1, row_scale=row_scale, activation=activation, gated=gated)
    return product(hidden, w2, b2, residual=residual)


def _check(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> None:
    """Checks that the call is supported. `others` are the remaining arguments of the schema, here and below."""
    b1, b2, residual, row_scale, activation, gated, *_ = others
    for name, one, wanted in (
        ("x", x, "[m, d_in], e.g. x.view(-1, x.shape[-1])"),
        ("w1", w1, "[d_hidden, d_in], or with a gate [2 d_hidden, d_in]"),
        ("w2", w2, "[d_out, d_hidden]"),
    ):
        if one.dim() != 2:
            raise WrongOperand(f"{name} has {one.dim()} dimensions: pass {wanted}")
    check_float("w1", w1)
    if (b1 is None) != (b2 is None):
        raise WrongOperand("b1 and b2 go together: pass both biases, or none")
    scale = name_of(torch.promote_types(w1.dtype, torch.float32))
    table = of_ffn(w1.shape[1], w2.shape[1], w2.shape[0], name_of(w1.dtype), gated=gated, scale_dtype=scale)
    tensors = {"x": x, "w1": w1, "w2": w2, "b1": b1, "b2": b2, "residual": residual, "row_scale": row_scale}
    check("ffn", {name: table[name] for name in tensors}, tensors)
    if row_scale is not None and not row_scale.is_contiguous():
        raise WrongOperand("row_scale is not contiguous: pass row_scale.contiguous()")
    try:
        canonical(activation)
    except InvalidInput as error:
        raise WrongOperand(str(error)) from error


def _checked_by_torch(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    _check(x, w1, w2, *others)
    return by_torch(x, w1, w2, *others)


def _on_cuda(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    """The operator on a card, with the prepared kernel if there is one for these operands."""
    b1, b2, residual, row_scale, activation, gated, *number = others
    given = (x, w1, w2, b1, b2, residual, row_scale)
    fitting = (one for one in _prepared.of(lie(given[1:5]), *number) if one.computes(given, activation, gated))
    if (known := next(fitting, None)) is None:
        return _checked_by_torch(x, w1, w2, *others)
    rows = x.shape[0]
    if residual is None and row_scale is None and x.is_contiguous():
        y = x.new_empty((rows, w2.shape[0]))
        known.ffn.launch(rows, x.data_ptr(), y.data_ptr(), _current_stream(x.get_device()))
        return y
    added = None if residual is None else residual.contiguous()
    found: torch.Tensor = known.ffn(x.contiguous(), residual=added, row_scale=row_scale)
    return found


def _stream_by_its_object(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


#: The address of a device's current stream. PyTorch's own compiled code gets it without an object, which takes a tenth
#: of the time.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_by_its_object)


def _fake(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *others: Any) -> torch.Tensor:
    _check(x, w1, w2, *others)
    return x.new_empty((x.shape[0], w2.shape[0]))


_library.define("ffn" + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
_library.impl("ffn", _checked_by_torch, "CPU")
torch.library.register_fake("tuner::ffn", _fake, lib=_library)
# Called by the C++ operator for everything that was not prepared exactly: it is refused here, or computed.
_library.define("ffn_by_torch" + _SCHEMA)
_library.impl("ffn_by_torch", _checked_by_torch, "CompositeExplicitAutograd")
#: The C++ operator for a card; None if it was not built, and then the one above is used.
compiled = torch_compiled.load()
if compiled is None:
    _library.impl("ffn", _on_cuda, "CUDA")

__all__ = ["by_torch", "compiled", "forget", "register"]
