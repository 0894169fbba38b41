"""A manifest's convolution in PyTorch's own operators: its operands, the shape of its output, and its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.ops.conv.op import ConvOp

Json = dict[str, Any]


def made(op: Json) -> tuple[int, int]:
    """Pixels and channels of the op's output."""
    of = _of(op)
    return of.m, of.filters


def operands(op: Json) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Role and shape of the op's operands, by name: images, filters, bias, residual."""
    of = _of(op)
    found: dict[str, tuple[str, tuple[int, ...]]] = {of.source: ("input", of.source_shape)}
    found[f"{of.name}.w"] = ("weight", (of.filters, of.k))
    if of.bias:
        found[f"{of.name}.bias"] = ("bias", (of.filters,))
    if of.residual:
        found.setdefault(of.residual_source, ("residual", (of.m, of.filters)))
    return found


def computed(torch: Any, op: Json, tensors: Mapping[str, Any], activated: Any) -> Any:
    """The output [pixels, channels]; `activated` applies the activation of a given name to sums."""
    of = _of(op)
    x = tensors[of.source].reshape(of.images, of.height, of.width, of.channels).permute(0, 3, 1, 2)
    w = tensors[f"{of.name}.w"].reshape(of.filters, of.kernel, of.kernel, of.channels).permute(0, 3, 1, 2)
    bias = tensors[f"{of.name}.bias"] if of.bias else None
    sums = torch.nn.functional.conv2d(x, w, bias, of.stride, of.padding).permute(0, 2, 3, 1).reshape(of.m, of.filters)
    return activated(sums + tensors[of.residual_source] if of.residual else sums, str(of.activation))


def _of(op: Json) -> ConvOp:
    return ConvOp.from_json(dict(op), Dtype.FP16)
