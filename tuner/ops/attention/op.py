"""What is asked of decode attention."""

from __future__ import annotations

from tuner.core.problem.attention_op import AttentionOp
from tuner.core.problem.op_kinds import OpKind

KIND = OpKind(op=AttentionOp, version=1)
