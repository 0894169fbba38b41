"""A manifest's pooling in PyTorch's own operators: its operands, the shape of its output, and its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.ops.conv.pooling.op import Function, PoolingOp

Json = dict[str, Any]


def made(op: Json) -> tuple[int, int]:
    """Pixels and channels of the op's output."""
    of = _of(op)
    return of.m, of.channels


def operands(op: Json) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Role and shape of the images."""
    of = _of(op)
    return {of.source: ("input", of.source_shape)}


def computed(torch: Any, op: Json, tensors: Mapping[str, Any], activated: Any) -> Any:
    """The output [pixels, channels]; `activated` is not needed."""
    of, functions = _of(op), torch.nn.functional
    x = tensors[of.source].reshape(of.in_shape).permute(0, 3, 1, 2)
    pool = functions.max_pool2d if of.function is Function.MAX else functions.avg_pool2d
    return pool(x, of.kernel, of.stride, of.padding).permute(0, 2, 3, 1).reshape(of.m, of.channels)


def _of(op: Json) -> PoolingOp:
    return PoolingOp.from_json(dict(op), Dtype.FP16)
