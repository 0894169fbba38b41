"""Two neighbouring convolutions of a chain as one op, whose kernel computes both in one CTA."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.op import Op
from tuner.errors import InvalidInput
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.rules import MOST_FILTER_BYTES


def joined(ops: Sequence[Op], dtype: Dtype) -> Sequence[Op]:
    """The ops with pairs instead of convolutions, the last ones first: in a bottleneck, the 3x3 convolution and the 1x1
    convolution that adds an image.

    Raises:
        InvalidInput: there are not two convolutions that a pair can have, with the reason for the last ones.
    """
    found, refused, first = list[Op](), list[InvalidInput](), set[str]()
    for op in reversed(ops):
        if op.name in first:
            continue
        before = next((one for one in ops if isinstance(op, ConvOp) and one.name == op.source), None)
        if isinstance(op, ConvOp) and isinstance(before, ConvOp):
            try:
                found.append(_pair(before, op, ops, dtype))
                first.add(before.name)
                continue
            except InvalidInput as error:
                refused.append(error)
        found.append(op)
    if refused and not first:
        raise refused[0]
    if not first:
        problem = f"{' and '.join(op.name for op in ops)} have no convolution that reads another"
        raise InvalidInput("ops", problem, "use another plan kind")
    return found[::-1]


def _pair(before: ConvOp, op: ConvOp, ops: Sequence[Op], dtype: Dtype) -> ConvPairOp:
    """Both as one op.

    Raises:
        InvalidInput: there is none.
    """
    pair = ConvPairOp.of(before, op)
    if others := [one.name for one in ops if one is not op and before.name in one.read_names]:
        problem = f"is {before.name}, which {others[0]} also reads"
        raise InvalidInput("source", problem, "use another plan kind")
    if (num_bytes := before.weight_bytes(dtype) + op.weight_bytes(dtype)) > MOST_FILTER_BYTES:
        problem = f"of {before.name} and {op.name} take {num_bytes} bytes, and a CTA has {MOST_FILTER_BYTES}"
        raise InvalidInput("filters", problem, "use another plan kind")
    return pair
