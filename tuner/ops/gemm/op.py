"""What is asked of a product of matrices."""

from __future__ import annotations

from tuner.core.problem.epilogue.added import part_versions
from tuner.core.problem.gemm_op import GemmOp
from tuner.core.problem.op_kinds import OpKind

KIND = OpKind(op=GemmOp, version=1, is_unnamed=True, extras=part_versions)
