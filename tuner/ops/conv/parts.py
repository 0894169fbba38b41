"""Parts of a convolution's epilogue: an image is added before the activation, as in networks with shortcuts.

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, figure 2.
"""

from __future__ import annotations

from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.epilogue import Part
from tuner.core.problem.epilogue.activate import Activate
from tuner.core.problem.epilogue.bias import Bias
from tuner.core.problem.epilogue.part import Product, Stage
from tuner.core.problem.epilogue.residual import Residual, residual_of
from tuner.core.problem.epilogue.sums import Sums, Tensors


class AddedImage(Residual):
    """A residual that is added to each sum."""

    stage: ClassVar[Stage] = Stage.SUMS
    planted: ClassVar[tuple[str, str]] = ("sums[c] + residual[c]", "sums[c]")

    def apply(self, op: Product, sums: Sums, tensors: Tensors) -> None:
        """Adds the image, and its tolerance if it is another op's output."""
        added = tensors[residual_of(op)]
        sums.add(added.values)
        if added.tolerance is not None:
            sums.error = sums.error + added.tolerance

    def is_in_library(self, op: Product) -> bool:
        """True: the library's convolutions can add an image."""
        return True


class Activated(Activate):
    """The activation, which a library's convolution applies if it is ReLU."""

    def is_in_library(self, op: Product) -> bool:
        return op.activation is Activation.RELU


#: The parts in the order in which a kernel applies them.
PARTS: tuple[Part, ...] = (AddedImage(), Bias(), Activated())
