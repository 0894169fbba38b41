"""A pooling of images as an op of a workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import OpKind
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import OpWords, Tensor, given, output
from tuner.errors import InvalidInput
from tuner.ops.conv.images import MAX_SIDE, ImageOp

#: Maximum rows and columns of a window, whose elements one thread reads.
MAX_KERNEL = 32


class Function(StrEnum):
    """What is computed of a window."""

    MAX = "max"
    AVERAGE = "average"


@dataclass(frozen=True, kw_only=True)
class PoolingOp(ImageOp):
    """Out[b, y, x, c] = the maximum or the average of In[b, s y + i - p, s x + j - p, c] over rows i and columns j of a
    window; s is the stride, p the padding, whose elements do not count.
    """

    KIND: ClassVar[str] = "conv_pooling"
    BATCH_FIELD: ClassVar[str | None] = "images"
    FREE: ClassVar[tuple[str, ...]] = ("images", "height", "width", "channels")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    images: int = field(metadata={"doc": "number of images", "ge": 1, "le": 2**16})
    height: int = field(metadata={"doc": "rows of each input image", "ge": 1, "le": MAX_SIDE})
    width: int = field(metadata={"doc": "columns of an image", "ge": 1, "le": MAX_SIDE})
    channels: int = field(metadata={"doc": "channels of each image", "ge": 1, "le": 2**15})
    function: Function = field(default=Function.MAX, metadata={"doc": "max or average"})
    kernel: int = field(default=2, metadata={"doc": "rows and columns of a window", "ge": 1, "le": MAX_KERNEL})
    stride: int = field(default=2, metadata={"doc": "distance of windows, in pixels", "ge": 1, "le": MAX_KERNEL})
    padding: int = field(
        default=0, metadata={"doc": "pixels around an image that do not count, up to half of a window; of max", "ge": 0}
    )
    source: str = field(default="x", metadata={"doc": "the images: an earlier op, or a name for an input"})
    is_output: bool = field(
        default=False, metadata={"doc": "whether the caller also reads the output if another op does"}
    )

    def __post_init__(self) -> None:
        """Raises InvalidInput, which names the field."""
        self.check_fields()
        if self.padding and self.function is Function.AVERAGE:
            raise InvalidInput("padding", f"is {self.padding} of an average", "use 0, or the maximum")
        self.check_elements({"input": self.source_shape, "output": (self.m, self.n)})

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels of the output."""
        return self.images, self.out_height, self.out_width, self.channels

    @property
    def n(self) -> int:
        """Channels."""
        return self.channels

    @property
    def k(self) -> int:
        """0, since there are no weights."""
        return 0

    @property
    def c_columns(self) -> int:
        """Channels."""
        return self.channels

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """The images."""
        remedy = "make images, height, width and channels those of the tensor"
        return (Read("source", self.source, self.source_shape, blame="channels", remedy=remedy),)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """The images and the output."""
        return (given(self.source, self.in_shape, dtype), output(self.name, self.out_shape, dtype))

    @property
    def num_flops(self) -> int:
        """An addition or comparison for each element of a window."""
        return self.m * self.n * self.kernel**2

    def num_steps(self, tile_k: int) -> int:
        """One, whatever the depth."""
        return 1

    def describe(self, *, with_rows: bool = True) -> str:
        """E.g. ``max 3x3 by 2 of 112x112``."""
        return f"{self.function} {self.kernel}x{self.kernel} by {self.stride} of {self.height}x{self.width}"

    def words(self) -> OpWords:
        """The op's row in a table of a chain's ops."""
        image = f"{self.images} x {self.height} x {self.width} x {self.channels}"
        return OpWords(sizes=f"{image}, {self.describe()}", reads=self.source, named={"source": self.source})


KIND = OpKind(op=PoolingOp, version=1)
