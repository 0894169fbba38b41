"""Convolutions as clients request them: as an op of a chain, as a pair by its sizes, and as layers of a network by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from tuner.core.problem.activation import Activation
from tuner.core.problem.asked import COUNT, AskedWorkload, Example, asked_field
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.conv.images import AskedImages, ImageOp
from tuner.ops.conv.networks import NETWORKS, Run, layers_of
from tuner.ops.conv.op import ConvOp

_DTYPE = "element type of every tensor: fp16 or bf16; sums are fp32"


@dataclass(frozen=True, kw_only=True)
class ChainConv(AskedImages):
    """Out[b, y, x, f] = act(bias[f] + R[b, y, x, f] + the convolution of images with filters), NHWC."""

    OP: ClassVar[type[ImageOp]] = ConvOp

    name: str = asked_field("name of the op, and of the tensor that it writes")
    source: str = asked_field("the images: an earlier op, or any other name for an input", "x")
    images: int = asked_field("number of images", bounds=COUNT)
    height: int = asked_field("rows of each input image", bounds=COUNT)
    width: int = asked_field("columns of an image", bounds=COUNT)
    channels: int = asked_field("channels of each input image", bounds=COUNT)
    filters: int = asked_field("channels of the output", bounds=COUNT)
    kernel: int = asked_field("rows and columns of a filter: 1, 3, 5 or 7", 1)
    stride: int = asked_field("stride of a filter, in pixels: 1 or 2", 1)
    padding: int = asked_field("zeros around an image, up to half of a filter", 0)
    activation: Activation = asked_field("applied after all sums", Activation.IDENTITY)
    bias: bool = asked_field("whether each filter has a bias", False)
    residual: str | None = asked_field(
        "what is added before the activation: an earlier op, or a name for an input", None
    )
    is_output: bool = asked_field("whether the caller also reads the output if another op does", False)
    groups: int = asked_field("1: grouped and depthwise convolutions are not supported", 1)
    dilation: int = asked_field("1: dilated convolutions are not supported", 1)


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The filters of one convolution, whose padding is half of a filter."""

    filters: int = asked_field("channels of its output", bounds=COUNT)
    kernel: int = asked_field("rows and columns of a filter: 1, 3, 5 or 7", bounds=COUNT)
    stride: int = asked_field("1 or 2", bounds=COUNT)


@dataclass(frozen=True, kw_only=True)
class ConvPair(AskedWorkload):
    """Two convolutions of images, NHWC, with a bias each; the second reads the first one's output."""

    KIND: ClassVar[str] = "conv-pair"
    SUMMARY: ClassVar[str] = "two convolutions, one after the other"
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "conv_pair": Example(
            "The 3x3 and the last 1x1 convolution of a bottleneck, with its shortcut",
            {"images": 1, "height": 28, "width": 28, "channels": 128,
             "first": {"filters": 128, "kernel": 3, "stride": 1},
             "second": {"filters": 512, "kernel": 1, "stride": 1}, "residual": True},
        )
    }  # fmt: skip

    images: int = asked_field("number of images", bounds={**COUNT, "example": 1})
    height: int = asked_field("rows of an image", bounds={**COUNT, "example": 28})
    width: int = asked_field("columns of an image", bounds={**COUNT, "example": 28})
    channels: int = asked_field("channels of an image", bounds={**COUNT, "example": 128})
    first: Filters = asked_field("filters, kernel and stride of the first convolution", bounds={"example": "128,3,1"})
    second: Filters = asked_field("the same of the second convolution", bounds={"example": "512,1,1"})
    activation: Activation = asked_field("applied after each of them", Activation.RELU)
    residual: bool = asked_field("whether an image is added before the second activation", False)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)

    def to_workload(self) -> Workload:
        """The two ops.

        Raises:
            InvalidInput: a field is wrong.
        """
        size, source = (self.images, self.height, self.width, self.channels), "x"
        ops = list[ConvOp]()
        for name, layer in (("first", self.first), ("second", self.second)):
            images, height, width, channels = size
            try:
                op = ConvOp(
                    name=name,
                    source=source,
                    images=images,
                    height=height,
                    width=width,
                    channels=channels,
                    filters=layer.filters,
                    kernel=layer.kernel,
                    stride=layer.stride,
                    padding=layer.kernel // 2,
                    activation=self.activation,
                    bias=True,
                    residual_source="shortcut" if self.residual and name == "second" else "",
                )
            except InvalidInput as error:
                own = {one.name for one in fields(Filters)}
                place = f"{name}.{error.field}" if error.field in own else error.field
                raise InvalidInput(place, error.problem, error.remedy) from error
            ops.append(op)
            size, source = (images, op.out_height, op.out_width, op.filters), name
        return Workload(kind=WorkloadKind.CHAIN, ops=tuple(ops), dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class NetworkConvs(AskedWorkload):
    """Neighbouring convolutions of a network, with batch norm folded into filters and biases."""

    KIND: ClassVar[str] = "network-convs"
    SUMMARY: ClassVar[str] = "convolutions of ResNet-50, ResNet-38 or VGG-19"
    CHOICES: ClassVar[Mapping[str, Mapping[str, object]]] = {"convolutions of a network": {}}
    EXAMPLES: ClassVar[Mapping[str, Example]] = {
        "network_convs": Example(
            "A bottleneck of ResNet-50", {"network": "resnet50", "stage": 3, "run": "block", "images": 1}
        )
    }

    network: str = asked_field("a network, e.g. `resnet50`", bounds={"choices": tuple(NETWORKS)})
    stage: int = asked_field("number of the stage, 1 to 4, or 5 for VGG-19", bounds={"ge": 1, "le": 5})
    run: Run = asked_field("a block, its first or last two convolutions, or a stage's first block", Run.BLOCK)
    images: int = asked_field("number of images", bounds=COUNT)
    dtype: Dtype = asked_field(_DTYPE, Dtype.FP16)

    def to_workload(self) -> Workload:
        """The ops.

        Raises:
            InvalidInput: the network has no such stage.
        """
        layers = layers_of(self.network, self.stage, self.run)
        return Workload(kind=WorkloadKind.CHAIN, ops=layers.ops(self.images), dtype=self.dtype)


OP = ChainConv
WORKLOADS = (ConvPair, NetworkConvs)
