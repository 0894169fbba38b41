"""A pooling as clients request it: an op of a chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.core.problem.asked import COUNT, AskedWorkload, asked_field
from tuner.ops.conv.images import AskedImages, ImageOp
from tuner.ops.conv.pooling.op import Function, PoolingOp


@dataclass(frozen=True, kw_only=True)
class ChainPooling(AskedImages):
    """Out[b, y, x, c] = the maximum or the average of a window of images, NHWC."""

    OP: ClassVar[type[ImageOp]] = PoolingOp

    name: str = asked_field("name of the op, and of the tensor that it writes")
    source: str = asked_field("the images: an earlier op, or any other name for an input", "x")
    images: int = asked_field("number of images", bounds=COUNT)
    height: int = asked_field("rows of each input image", bounds=COUNT)
    width: int = asked_field("columns of an image", bounds=COUNT)
    channels: int = asked_field("channels of each image", bounds=COUNT)
    function: Function = asked_field("max or average", Function.MAX)
    kernel: int = asked_field("rows and columns of a window, at most 32", 2)
    stride: int = asked_field("distance of windows, in pixels, at most 32", 2)
    padding: int = asked_field("pixels around an image that do not count, up to half of a window; of max", 0)
    is_output: bool = asked_field("whether the caller also reads the output if another op does", False)


OP = ChainPooling
WORKLOADS: tuple[type[AskedWorkload], ...] = ()
