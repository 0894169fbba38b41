"""A factor per row of W: the scale of an output channel of quantised weights, times a scale that all activations
share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.core.problem.epilogue.added import AddedPart, Own
from tuner.core.problem.epilogue.part import Draws, Product, Stage
from tuner.core.problem.ops.op import Tensor
from tuner.core.problem.rows.dtype import Array, ArrayModule
from tuner.core.problem.weights import WeightFormat


@dataclass(frozen=True, kw_only=True)
class ChannelScale(AddedPart):
    """The factors are fp32; with a gate, both halves have factors."""

    name: ClassVar[str] = "channel_scale"
    stage: ClassVar[Stage] = Stage.SUMS
    owns: ClassVar[tuple[Own, ...]] = (Own(name="factors"),)
    brings_size: ClassVar[bool] = True
    planted: ClassVar[tuple[str, str]] = ("factors[channel]", "factors[channel ^ 1]")

    def host(self, xp: ArrayModule, values: Array, *tensors: Array) -> Array:
        return values * tensors[0]

    def spread(self, xp: ArrayModule, values: Array, error: Array, *tensors: Array) -> Array:
        return error * xp.abs(tensors[0])

    def draw(self, op: Product, tensor: Tensor, draws: Draws) -> Any:
        factors = draws.factors(tensor.shape)
        has_size = op.weights is not None and op.weights.row.group  # the weights' own factors bring it
        return factors if has_size else factors * op.k**-0.5

    def is_plain(self, op: Product) -> bool:
        return True


def stored_fields(weights: WeightFormat | None) -> dict[str, Any]:
    """The fields of a chain's product whose weights have this format: without groups, each output channel has a
    scale."""
    if weights is None:
        return {}
    return {"weights": str(weights)} | ({} if weights.row.group else {"epilogue": [{"part": ChannelScale.name}]})
