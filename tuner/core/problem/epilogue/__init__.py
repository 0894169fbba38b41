"""The parts of a product's epilogue in execution order, one file each."""

from __future__ import annotations

from tuner.core.problem.epilogue.activate import Activate
from tuner.core.problem.epilogue.added import AddedPart, keep_own
from tuner.core.problem.epilogue.bias import Bias
from tuner.core.problem.epilogue.gate import Gate
from tuner.core.problem.epilogue.norm import Norm
from tuner.core.problem.epilogue.part import Argument, Part, Product, Stage
from tuner.core.problem.epilogue.residual import Residual
from tuner.core.problem.epilogue.row_scale import RowScale
from tuner.core.problem.epilogue.scales.block_scale import BlockScale, InputScale
from tuner.core.problem.epilogue.scales.channel_scale import ChannelScale
from tuner.core.problem.epilogue.scales.group_scale import GroupOperand, GroupScale
from tuner.core.problem.epilogue.scales.operand import Operand
from tuner.core.problem.epilogue.scales.output_scale import OutputScale
from tuner.core.problem.epilogue.turn import Turn

__all__ = ["PARTS", "AddedPart", "Argument", "Part", "Product", "Stage", "parts_of"]

keep_own(ChannelScale, Operand, OutputScale, BlockScale, InputScale, GroupScale, GroupOperand)

#: The program's own parts, in the order in which a kernel executes them.
PARTS: tuple[Part, ...] = (RowScale(), Norm(), Bias(), Turn(), Activate(), Gate(), Residual())


def parts_of(op: Product) -> tuple[Part, ...]:
    """The parts of an op, stage by stage; within a stage, the program's own come first."""
    own = [part for part in PARTS if part.is_in(op)]
    return tuple(sorted([*own, *op.epilogue], key=lambda part: part.stage)) if op.epilogue else tuple(own)
