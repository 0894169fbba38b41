"""Convolutions of networks, by name. Blocks repeat within a stage: ``block`` is any of them except the first, which is
``first``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.core.problem.activation import Activation
from tuner.errors import InvalidInput
from tuner.ops.conv.op import ConvOp


class Run(StrEnum):
    """Neighbouring convolutions of a block."""

    #: All convolutions.
    BLOCK = "block"
    #: The first two, or the last two.
    FRONT = "front"
    BACK = "back"
    #: The whole first block of a stage, with the convolution of its shortcut.
    FIRST = "first"


def _conv(name: str, kernel: int, filters: int, stride: int, read: Mapping[str, Any], **others: Any) -> ConvOp:
    """A convolution with a bias and, by default, ReLU; its output has the size of its input, divided by the stride."""
    plain = {"activation": Activation.RELU, "bias": True, "padding": kernel // 2, **read, **others}
    return ConvOp(name=name, kernel=kernel, filters=filters, stride=stride, **plain)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """A sequence of convolutions."""

    #: Rows and columns of the input images.
    size: int
    #: Channels of these images.
    channels: int
    #: (kernel, filters) of each convolution.
    filters: tuple[tuple[int, int], ...]
    #: The stride of the first 3x3 convolution, and of the shortcut's.
    stride: int = 1
    #: Whether the last convolution adds an image: the block's input, if the layers are the whole block.
    has_shortcut: bool = False
    is_whole: bool = True
    #: Whether the added image is a convolution of the block's input.
    projects: bool = False

    def ops(self, images: int) -> tuple[ConvOp, ...]:
        """The convolutions, each with a bias and ReLU."""
        found, stride = list[ConvOp](), self.stride
        first = {"images": images, "height": self.size, "width": self.size, "channels": self.channels, "source": "x"}
        read = first
        for place, (kernel, filters) in enumerate(self.filters):
            added = ""
            if self.has_shortcut and place == len(self.filters) - 1:
                added = "shortcut" if self.projects or not self.is_whole else "x"
            if added and self.projects:
                found.append(_conv("shortcut", 1, filters, self.stride, first, activation=Activation.IDENTITY))
            by = stride if kernel > 1 else 1
            found.append(_conv(f"conv{place + 1}", kernel, filters, by, read, residual_source=added))
            stride = stride // by
            size = found[-1].out_height
            read = {"images": images, "height": size, "width": size, "channels": filters, "source": found[-1].name}
        return tuple(found)

    def some(self, run: Run) -> Layers:
        """The layers of a run."""
        if run not in (Run.FRONT, Run.BACK) or len(self.filters) <= 2:
            return self
        channels = [self.channels, *(filters for _, filters in self.filters)]
        begin = 0 if run is Run.FRONT else len(self.filters) - 2
        return Layers(
            size=self.size,
            channels=channels[begin],
            filters=self.filters[begin : begin + 2],
            has_shortcut=self.has_shortcut and run is Run.BACK,
            is_whole=False,
        )


def _blocks(kernels: tuple[int, ...], widen: int, *, is_first: bool = False) -> tuple[Layers, ...]:
    """A block per stage: the first, which reads the previous stage and halves the images, or any later one.

    Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1, option B. The stride is the
    3x3 convolution's, as in torchvision.
    """
    found, before = list[Layers](), (_STAGES[0][0], _STEM)
    for size, width in _STAGES:
        own = (size, widen * width)
        filters = (*((kernel, width) for kernel in kernels[:-1]), (kernels[-1], own[1]))
        read = before if is_first else own
        found.append(
            Layers(
                size=read[0],
                channels=read[1],
                filters=filters,
                stride=read[0] // size,
                has_shortcut=True,
                projects=read != own,
            )
        )
        before = own
    return tuple(found)


#: Channels before the first stage.
_STEM = 64
_STAGES = ((56, 64), (28, 128), (14, 256), (7, 512))
#: Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015, E.
_VGG_STAGES = ((224, 64), (112, 128), (56, 256), (28, 512), (14, 512))

#: The blocks of each stage, by network. ResNet-38 has the basic blocks of ResNet-34.
NETWORKS: Mapping[str, tuple[Layers, ...]] = {
    "resnet50": _blocks((1, 3, 1), 4),
    "resnet38": _blocks((3, 3), 1),
    "vgg19": tuple(Layers(size=size, channels=width, filters=((3, width), (3, width))) for size, width in _VGG_STAGES),
}
#: The first block of each stage, by network.
FIRST_BLOCKS: Mapping[str, tuple[Layers, ...]] = {
    "resnet50": _blocks((1, 3, 1), 4, is_first=True),
    "resnet38": _blocks((3, 3), 1, is_first=True),
}


def layers_of(network: str, stage: int, run: Run) -> Layers:
    """The convolutions of a block.

    Raises:
        InvalidInput: there is no such block.
    """
    if network not in NETWORKS:
        raise InvalidInput("network", f"{network!r} is not a known network", f"choose one of {', '.join(NETWORKS)}")
    stages = NETWORKS[network]
    if not 1 <= stage <= len(stages):
        raise InvalidInput("stage", f"is {stage}, but {network} has {len(stages)}", f"use 1 to {len(stages)}")
    if run is not Run.FIRST:
        return stages[stage - 1].some(run)
    if network not in FIRST_BLOCKS:
        raise InvalidInput("run", f"is first, but blocks of {network} have no shortcut", "give block")
    return FIRST_BLOCKS[network][stage - 1]
