"""A convolution of images as an op of a workload, with what its epilogue does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Self

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.epilogue import Part
from tuner.core.problem.op_kinds import OpKind
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import OpWords, Tensor, given, output, weight
from tuner.core.problem.tile_op import Im2col
from tuner.errors import InvalidInput
from tuner.ops.conv.images import MAX_SIDE, ImageOp
from tuner.ops.conv.parts import PARTS

KERNELS, STRIDES = (1, 3, 5, 7), (1, 2)


@dataclass(frozen=True, kw_only=True)
class ConvOp(ImageOp):
    """Out[b, y, x, f] = act(bias[f] + R[b, y, x, f] + the sum of W[f, i, j, c] In[b, s y + i - p, s x + j - p, c]).

    The sum is over rows i and columns j of a filter and channels c; s is the stride, p the padding. Images are NHWC,
    and W is [filters, kernel, kernel, channels]: what PyTorch calls channels last. An image is surrounded by zeros.
    As a product, A has one row per pixel of the output and one column per (i, j, c); it is never stored. As a matrix, a
    tensor of images has one row per pixel.
    """

    KIND: ClassVar[str] = "conv"
    BATCH_FIELD: ClassVar[str | None] = "images"
    FREE: ClassVar[tuple[str, ...]] = ("images", "height", "width", "channels", "filters")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE
    IS_PRODUCT: ClassVar[bool] = True
    GATHERS: ClassVar[bool] = True

    #: Unique name of the op, and of the tensor that it writes.
    name: str
    images: int = field(metadata={"doc": "number of images", "ge": 1, "le": 2**16})
    height: int = field(metadata={"doc": "rows of each input image", "ge": 1, "le": MAX_SIDE})
    width: int = field(metadata={"doc": "columns of an image", "ge": 1, "le": MAX_SIDE})
    channels: int = field(metadata={"doc": "channels of each input image", "ge": 1, "le": 2**15})
    filters: int = field(metadata={"doc": "channels of the output", "ge": 1, "le": 2**15})
    kernel: int = field(default=1, metadata={"doc": "rows and columns of a filter: 1, 3, 5 or 7"})
    stride: int = field(default=1, metadata={"doc": "stride of a filter, in pixels: 1 or 2"})
    padding: int = field(default=0, metadata={"doc": "zeros around an image, up to half of a filter", "ge": 0})
    source: str = field(default="x", metadata={"doc": "the images: an earlier op, or a name for an input"})
    activation: Activation = field(default=Activation.IDENTITY, metadata={"doc": "applied after all sums"})
    bias: bool = field(default=False, metadata={"doc": "whether each filter has a bias"})
    residual_source: str = field(
        default="", metadata={"doc": "images that are added before the activation: an earlier op, or an input"}
    )
    is_output: bool = field(
        default=False, metadata={"doc": "whether the caller also reads the output if another op does"}
    )
    groups: int = field(default=1, metadata={"doc": "1: other convolutions are not supported"})
    dilation: int = field(default=1, metadata={"doc": "1: other convolutions are not supported"})

    def __post_init__(self) -> None:
        """Raises InvalidInput, which names the field."""
        for name in ("groups", "dilation"):
            if (value := getattr(self, name)) != 1:
                raise InvalidInput(name, f"is {value}, but only plain convolutions are supported", "use 1")
        for name, values in (("kernel", KERNELS), ("stride", STRIDES)):
            if (value := getattr(self, name)) not in values:
                raise InvalidInput(name, f"is {value}", f"use {', '.join(map(str, values[:-1]))} or {values[-1]}")
        self.check_fields()
        self.check_elements({"input": self.source_shape, "W": (self.filters, self.k), "output": (self.m, self.filters)})

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels of the output."""
        return self.images, self.out_height, self.out_width, self.filters

    @property
    def n(self) -> int:
        """Channels of the output."""
        return self.filters

    @property
    def k(self) -> int:
        """Elements of a filter."""
        return self.kernel**2 * self.channels

    @property
    def residual(self) -> bool:
        """Whether images are added."""
        return bool(self.residual_source)

    @property
    def c_columns(self) -> int:
        """Channels of the output."""
        return self.filters

    @property
    def im2col(self) -> Im2col:
        """The tensor map for the first element of a filter; the others are at offsets of rows and columns from it."""
        return Im2col(
            images=self.images,
            height=self.height,
            width=self.width,
            channels=self.channels,
            lower=-self.padding,
            upper=self.padding - (self.kernel - 1),
            stride=self.stride,
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its epilogue, in order."""
        return tuple(part for part in PARTS if part.is_in(self))

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """The images, and the residual."""
        remedy = "make images, height, width and channels those of the tensor"
        named = (read for part in self.parts for read in part.reads(self))
        return (Read("source", self.source, self.source_shape, blame="channels", remedy=remedy), *named)

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """Images, filters, what the epilogue reads, and the output."""
        return (
            given(self.source, self.in_shape, dtype),
            weight(f"{self.name}.weight", (self.filters, self.kernel, self.kernel, self.channels), dtype),
            *(tensor for part in self.parts for tensor in part.tensors(self, dtype)),
            output(self.name, self.out_shape, dtype),
        )

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors that only this op has; weights are ``w`` in an artifact."""
        return tuple(f"{self.name}.{name}" for name in ("weight", "w", "bias"))

    def weight_bytes(self, dtype: Dtype) -> int:
        """Bytes of W; a bias is part of `own_bytes`."""
        return self.filters * self.k * dtype.size_bytes

    def own_bytes(self, dtype: Dtype, written: Collection[str]) -> int:
        """Bytes of a bias."""
        return sum(part.own_bytes(self, dtype, written) for part in self.parts)

    def epilogue_bytes(self, dtype: Dtype) -> int:
        """Bytes of bias and residual, whatever their source."""
        return sum(part.num_bytes(self, dtype) for part in self.parts)

    @property
    def num_flops(self) -> int:
        """Multiplications and additions, including those with zeros around an image."""
        return 2 * self.m * self.n * self.k

    def describe(self, *, with_rows: bool = True) -> str:
        """E.g. ``3x3 64 of 56x56``."""
        by = f" by {self.stride}" if self.stride > 1 else ""
        return f"{self.kernel}x{self.kernel} {self.filters}{by} of {self.height}x{self.width}"

    def words(self) -> OpWords:
        """The op's row in a table of a chain's ops."""
        found = [part.words(self) for part in self.parts]
        image = f"{self.images} x {self.height} x {self.width} x {self.channels}"
        return OpWords(
            sizes=f"{image}, {self.describe()}",
            reads=self.source,
            named={read.field: read.tensor for read in self.reads},
            adds=" and ".join(words["adds"] for words in reversed(found) if "adds" in words),
            function=", ".join(words["function"] for words in found if "function" in words),
        )

    @classmethod
    def extras(cls, ops: Sequence[Self]) -> list[str]:
        """The filters of each op, then the options that any of them has."""
        found = [op.describe() for op in ops]
        found += dict.fromkeys(str(op.activation) for op in ops if op.activation is not Activation.IDENTITY)
        return found + [name for name in ("bias", "residual") if any(getattr(op, name) for op in ops)]


KIND = OpKind(op=ConvOp, version=2)
