"""Two convolutions as one op, whose kernel computes both in one CTA."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.op import Op
from tuner.errors import InvalidInput
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pair.op import ConvPairOp


def joined(ops: Sequence[Op], dtype: Dtype) -> ConvPairOp:
    """The pair.

    Raises:
        InvalidInput: they are not two convolutions that a pair can have, with the reason.
    """
    convs = [op for op in ops if isinstance(op, ConvOp)]
    if len(ops) != 2 or len(convs) != 2:
        problem = f"{' and '.join(op.name for op in ops)} are not two convolutions"
        raise InvalidInput("ops", problem, "use another plan kind")
    return ConvPairOp.of(*convs)
