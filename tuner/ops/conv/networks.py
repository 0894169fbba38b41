"""Convolutions of networks by name. They repeat within a stage: a block is any but a stage's first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tuner.core.problem.activation import Activation
from tuner.errors import InvalidInput
from tuner.ops.conv.op import ConvOp


class Run(StrEnum):
    """Neighbouring convolutions of a block."""

    #: All.
    BLOCK = "block"
    #: The first two, or the last two.
    FRONT = "front"
    BACK = "back"


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Convolutions of stride 1, one behind the other, whose images keep their size."""

    #: Rows and columns of images.
    size: int
    #: Channels of what they read.
    channels: int
    #: (kernel, filters) of each.
    filters: tuple[tuple[int, int], ...]
    #: Whether the last one adds an image: that which the block reads, where they are all of it.
    has_shortcut: bool = False
    is_whole: bool = True

    def ops(self, images: int) -> tuple[ConvOp, ...]:
        """With a bias and ReLU behind each."""
        found, channels, source = list[ConvOp](), self.channels, "x"
        for place, (kernel, filters) in enumerate(self.filters):
            adds = self.has_shortcut and place == len(self.filters) - 1
            shortcut = "x" if self.is_whole else "shortcut"
            found.append(
                ConvOp(
                    name=f"conv{place + 1}",
                    source=source,
                    images=images,
                    height=self.size,
                    width=self.size,
                    channels=channels,
                    filters=filters,
                    kernel=kernel,
                    padding=kernel // 2,
                    activation=Activation.RELU,
                    bias=True,
                    residual_source=shortcut if adds else "",
                )
            )
            channels, source = filters, found[-1].name
        return tuple(found)

    def some(self, run: Run) -> Layers:
        """Those of a run."""
        if run is Run.BLOCK or len(self.filters) <= 2:
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


def _bottlenecks() -> tuple[Layers, ...]:
    """Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1."""
    return tuple(
        Layers(size=size, channels=4 * width, filters=((1, width), (3, width), (1, 4 * width)), has_shortcut=True)
        for size, width in _STAGES
    )


def _pairs(stages: tuple[tuple[int, int], ...], *, has_shortcut: bool) -> tuple[Layers, ...]:
    return tuple(
        Layers(size=size, channels=width, filters=((3, width), (3, width)), has_shortcut=has_shortcut)
        for size, width in stages
    )


_STAGES = ((56, 64), (28, 128), (14, 256), (7, 512))
#: Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015, E.
_VGG_STAGES = ((224, 64), (112, 128), (56, 256), (28, 512), (14, 512))

#: By name, the blocks of each stage. ResNet-38 has the basic blocks of ResNet-34.
NETWORKS: Mapping[str, tuple[Layers, ...]] = {
    "resnet50": _bottlenecks(),
    "resnet38": _pairs(_STAGES, has_shortcut=True),
    "vgg19": _pairs(_VGG_STAGES, has_shortcut=False),
}


def layers_of(network: str, stage: int, run: Run) -> Layers:
    """Of a block.

    Raises:
        InvalidInput: there is none.
    """
    if network not in NETWORKS:
        raise InvalidInput("network", f"{network!r} is none that is known", f"choose one of {', '.join(NETWORKS)}")
    stages = NETWORKS[network]
    if not 1 <= stage <= len(stages):
        raise InvalidInput("stage", f"is {stage}, and {network} has {len(stages)}", f"use 1 to {len(stages)}")
    return stages[stage - 1].some(run)
