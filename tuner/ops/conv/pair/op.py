"""Two convolutions as one op: the images between them exist only in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Self

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import OpKind
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import LaunchOp, Op, OpWords, Tensor, given, output, weight
from tuner.errors import InvalidInput
from tuner.ops.conv.op import ConvOp


@dataclass(frozen=True, kw_only=True)
class ConvPairOp(LaunchOp):
    """Out = act(conv(act(conv(In, W1) + b1), W2) + R + b2), NHWC, as two `ConvOp` compute it."""

    KIND: ClassVar[str] = "conv_pair"
    BATCH_FIELD: ClassVar[str | None] = "images"
    FREE: ClassVar[tuple[str, ...]] = ("images", "height", "width", "channels", "between", "filters")
    FREE_IN_CHAIN: ClassVar[tuple[str, ...]] = FREE

    #: Unique name of the op, and of the tensor that it writes; the filters of the second convolution are ``<name>.w``.
    name: str
    images: int = field(metadata={"doc": "number of images", "ge": 1, "le": 2**16})
    height: int = field(metadata={"doc": "rows of each input image", "ge": 1, "le": 2**13})
    width: int = field(metadata={"doc": "columns of one", "ge": 1, "le": 2**13})
    channels: int = field(metadata={"doc": "channels of each input image", "ge": 1, "le": 2**15})
    between: int = field(metadata={"doc": "filters of the first convolution", "ge": 1, "le": 2**15})
    filters: int = field(metadata={"doc": "filters of the second: channels of the output", "ge": 1, "le": 2**15})
    first_kernel: int = field(default=1, metadata={"doc": "rows and columns of a filter of the first: 1, 3, 5 or 7"})
    first_stride: int = field(default=1, metadata={"doc": "its stride, in pixels: 1 or 2"})
    first_padding: int = field(default=0, metadata={"doc": "zeros around an image, up to half of its filter", "ge": 0})
    second_kernel: int = field(default=1, metadata={"doc": "rows and columns of a filter of the second: 1, 3, 5 or 7"})
    second_stride: int = field(default=1, metadata={"doc": "its stride, in pixels: 1 or 2"})
    second_padding: int = field(
        default=0, metadata={"doc": "zeros around the images between, up to half of its filter", "ge": 0}
    )
    source: str = field(default="x", metadata={"doc": "the images: an earlier op, or a name for an input"})
    first_op: str = field(
        default="", metadata={"doc": "prefix of the first one's `.w` and `.bias`; `<name>.first` if it is empty"}
    )
    activation: Activation = field(default=Activation.RELU, metadata={"doc": "applied after each convolution"})
    bias: bool = field(default=True, metadata={"doc": "whether the filters of both have a bias"})
    residual_source: str = field(
        default="", metadata={"doc": "images that are added before the last activation: an earlier op, or an input"}
    )
    is_output: bool = field(
        default=False, metadata={"doc": "whether the caller also reads the output if another op does"}
    )

    def __post_init__(self) -> None:
        """Raises InvalidInput, which names the field."""
        for place in ("first", "second"):
            try:
                getattr(self, place)
            except InvalidInput as error:
                own = error.field in ("kernel", "stride", "padding")
                renamed = {"filters": "between"} if place == "first" else {"channels": "between", "height": "height"}
                name = f"{place}_{error.field}" if own else renamed.get(error.field, error.field)
                raise InvalidInput(name, error.problem, error.remedy) from error

    @classmethod
    def of(cls, first: ConvOp, second: ConvOp) -> Self:
        """Two convolutions as one op, with the name of the second.

        Raises:
            InvalidInput: it has no form for them, with the field that differs.
        """
        for name in ("activation", "bias"):
            if getattr(first, name) != getattr(second, name):
                problem = f"is {getattr(first, name)} for {first.name}, and {getattr(second, name)} for {second.name}"
                raise InvalidInput(name, problem, "use the same for both, or another plan kind")
        if first.residual:
            problem = f"is added by {first.name}: a pair in one CTA adds one only after its second convolution"
            raise InvalidInput("residual", problem, "use another plan kind")
        if first.is_output or second.source != first.name or second.residual_source == first.name:
            problem = f"is {second.source!r}, and nothing else may read {first.name}"
            raise InvalidInput("source", problem, f"use {first.name}, or another plan kind")
        return cls(
            name=second.name,
            source=first.source,
            first_op=first.name,
            images=first.images,
            height=first.height,
            width=first.width,
            channels=first.channels,
            between=first.filters,
            filters=second.filters,
            first_kernel=first.kernel,
            first_stride=first.stride,
            first_padding=first.padding,
            second_kernel=second.kernel,
            second_stride=second.stride,
            second_padding=second.padding,
            activation=second.activation,
            bias=second.bias,
            residual_source=second.residual_source,
            is_output=second.is_output,
        )

    @cached_property
    def first(self) -> ConvOp:
        """The first convolution, as an op of its own."""
        return ConvOp(
            name=self.first_op or f"{self.name}.first",
            source=self.source,
            images=self.images,
            height=self.height,
            width=self.width,
            channels=self.channels,
            filters=self.between,
            kernel=self.first_kernel,
            stride=self.first_stride,
            padding=self.first_padding,
            activation=self.activation,
            bias=self.bias,
        )

    @cached_property
    def second(self) -> ConvOp:
        """The second one."""
        first = self.first
        return ConvOp(
            name=self.name,
            source=first.name,
            images=self.images,
            height=first.out_height,
            width=first.out_width,
            channels=self.between,
            filters=self.filters,
            kernel=self.second_kernel,
            stride=self.second_stride,
            padding=self.second_padding,
            activation=self.activation,
            bias=self.bias,
            residual_source=self.residual_source,
        )

    @property
    def m(self) -> int:
        """Pixels of all images of the output."""
        return self.second.m

    @property
    def c_columns(self) -> int:
        """Channels of the output."""
        return self.filters

    @property
    def reads(self) -> tuple[Read, ...]:
        """The images, and those that are added."""
        remedy = "make images, height, width and channels those of the tensor"
        images = Read("source", self.source, self.first.source_shape, blame="channels", remedy=remedy)
        return (images, *(read for read in self.second.reads if read.field == "residual_source"))

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """Images, filters and biases of both, added images that are not those, and the output."""
        found = [given(self.source, (self.images, self.height, self.width, self.channels), dtype)]
        for op in (self.first, self.second):
            found.append(weight(f"{op.name}.w", (op.filters, op.kernel, op.kernel, op.channels), dtype))
            if self.bias:
                found.append(weight(f"{op.name}.bias", (op.filters,), dtype))
        images = (self.images, self.second.out_height, self.second.out_width, self.filters)
        if self.residual_source not in ("", self.source):
            found.append(given(self.residual_source, images, dtype))
        return (*found, output(self.name, images, dtype))

    @property
    def num_flops(self) -> int:
        """Those of both convolutions; pixels of the halo, which several CTAs compute, count once."""
        return self.first.num_flops + self.second.num_flops

    def check_place(self, ops: tuple[Op, ...], dtype: Dtype) -> None:  # type: ignore[override]
        """Checks that the element type has 16 bits.

        Raises:
            InvalidInput: it has a different size.
        """
        self.first.check_place(ops, dtype)

    def describe(self, *, with_rows: bool = True) -> str:
        """E.g. ``3x3 64 of 56x56, 1x1 256 of 56x56``."""
        return f"{self.first.describe()}, {self.second.describe()}"

    def words(self) -> OpWords:
        """The op's row in a table of a chain's ops."""
        image = f"{self.images} x {self.height} x {self.width} x {self.channels}"
        return OpWords(
            sizes=f"{image}, {self.describe()}",
            reads=self.source,
            named={read.field: read.tensor for read in self.reads},
            adds=" and ".join([*(["bias"] if self.bias else []), *filter(None, [self.residual_source])]),
            function="" if self.activation is Activation.IDENTITY else str(self.activation),
        )

    def place_of(self, row: int, column: int) -> str:
        """The pixel that an element of the output belongs to."""
        return self.second.place_of(row, column)


KIND = OpKind(op=ConvPairOp, version=2)
