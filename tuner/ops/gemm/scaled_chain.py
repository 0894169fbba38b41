"""A chain's products with 8-bit operands, and scales per token and channel, or of groups and blocks; the residual
stream has 16 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue.scales.block_scale import BlockScale
from tuner.core.problem.epilogue.scales.channel_scale import ChannelScale
from tuner.core.problem.epilogue.scales.group_scale import GroupOperand, GroupScale
from tuner.core.problem.epilogue.scales.operand import Operand
from tuner.core.problem.epilogue.scales.output_scale import OutputScale
from tuner.core.problem.weights import WeightFormat
from tuner.errors import InvalidInput

Json = dict[str, Any]


def scaled_products(products: Sequence[Mapping[str, Any]], stream: Dtype) -> list[Json]:
    """The same products, as ops of a chain whose elements have 8 bits.

    An input is quantised by token: its factors are a row scale, and a norm of it has been applied. A product whose
    output is normed stores that in `stream`, for the residual and the norm, and a second time in 8 bits, multiplied by
    the norm's weights over a static scale; its readers multiply the 8-bit copy. An intermediate that is not normed has
    a static scale. If groups scale the weights, a scale per channel is left only for the static scale of an input.

    Weights of 8 bits with a scale per 128 x 128 are multiplied as they are. Then inputs, the operand and intermediates
    have a scale for each row and 128 columns.

    Raises:
        InvalidInput: a product has a bias, whose elements would have 8 bits.
    """
    names = {str(op["name"]) for op in products}
    normed, read = {op.get("norm") for op in products}, {op["source"] for op in products}
    return [_scaled(op, stream, names, op["name"] in normed, op["name"] in read) for op in products]


def _scaled(op: Mapping[str, Any], stream: Dtype, names: set[str], is_normed: bool, is_read: bool) -> Json:
    if op.get("bias"):
        problem = "has a bias, whose elements would have the 8 bits of the operands"
        raise InvalidInput(str(op["name"]), problem, "use a model without biases, or weights e4m3 and a 16-bit dtype")
    row = WeightFormat(op["weights"]).row if op.get("weights") else None
    in_blocks = row is not None and row.element is not None and row.group > 0
    has_groups = row is not None and op["source"] not in names  # which scale the weights
    parts = [BlockScale.name] if in_blocks else [] if has_groups else [ChannelScale.name]
    operand = GroupOperand if in_blocks else Operand
    left_out = ("norm", "eps", *(["weights"] if in_blocks else []))
    made = {name: value for name, value in op.items() if name not in left_out}
    if op["source"] not in names:
        made["row_scale"] = not in_blocks
    elif op.get("norm"):
        made |= {"norm": op["norm"], "eps": op["eps"], "source": operand.values_of(str(op["source"]))}
    if is_normed or not is_read:
        made["out_dtype"] = str(stream)
        parts += [operand.name] if is_normed else []
    else:
        parts.append(GroupScale.name if in_blocks else OutputScale.name)
    return {**made, "epilogue": [{"part": part} for part in parts]}
