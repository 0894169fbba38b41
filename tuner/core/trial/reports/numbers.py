"""References for the results of a launch op, from the file ``numbers`` of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tuner.core.problem.dtype import INT32, Dtype
from tuner.core.problem.ops.op import LaunchOp, Tensor


class Expected(NamedTuple):
    """The expected value of a tensor, in the tensor's shape."""

    #: Float64; integers as float64, too.
    values: Any
    #: The allowed error of each element; None if each must be exact.
    tolerance: Any = None


class Numbers(Protocol):
    """The file ``numbers`` of a kind of launch op."""

    def reference(self, op: Any, given: Mapping[str, Any], dtype: Dtype, xp: Any) -> Mapping[str, Expected]:
        """The expected value of each tensor that a launch writes, by its name. `given` contains every tensor that it
        reads, integers as such and all others in float64; `xp` is NumPy or CuPy, as its arrays are."""

    def planted(self, op: Any, schedule: Any, dtype: Dtype) -> Mapping[str, str]:
        """Sources with a planted fault that the check must detect, by the fault's description."""

    def draw(self, op: Any, tensor: Tensor, turn: int, random: np.random.Generator) -> Any:
        """The values of an input that should not be drawn by default: a NumPy array, or None for the default. Turn 0 is
        timed, the others are only checked.
        """


def drawn(
    numbers: ModuleType, op: LaunchOp, tensor: Tensor, turn: int, random: np.random.Generator
) -> npt.NDArray[Any]:
    """An input tensor of a launch, float64 or int32.

    Integers with a range are drawn from it. A single one, such as a count, has its maximum in turns 0 and 2, its
    minimum in turn 1, and any value in turn 3. Several integers are at the ends of their range in turn 1.
    """
    if hasattr(numbers, "draw") and (own := numbers.draw(op, tensor, turn, random)) is not None:
        return np.asarray(own)
    if tensor.dtype != INT32.name:
        return random.standard_normal(tensor.shape)
    least, most = tensor.range or (0, 0)
    if turn == 1:
        ends = np.arange(tensor.num_elements) % 2 * (most - least) + least
        return ends.reshape(tensor.shape).astype(np.int32)
    if tensor.num_elements == 1 and turn != 3:
        return np.full(tensor.shape, most, dtype=np.int32)
    return random.integers(least, most, tensor.shape, dtype=np.int32, endpoint=True)
