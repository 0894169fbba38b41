"""What ops of images have in common: NHWC images of a known size, and windows that move over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar, Self

from tuner.core.problem.asked import AskedOp
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.codec import fields_of
from tuner.core.problem.ops.op import Op
from tuner.core.problem.tile_op import MAX_ELEMENTS, TileOp
from tuner.errors import InvalidInput

#: Maximum rows and columns of an image: a position in it, padding included, has 15 bits.
MAX_SIDE = 2**13
#: The fields with the sizes of input images.
_SIZES = ("images", "height", "width", "channels")


class ImageOp(TileOp):
    """An op whose windows, `kernel` x `kernel` pixels, move over images by `stride`. As a matrix, a tensor of images
    has one row per pixel."""

    if TYPE_CHECKING:
        images: int
        height: int
        width: int
        channels: int
        kernel: int
        stride: int
        padding: int

        @property
        def out_shape(self) -> tuple[int, int, int, int]:
            """Images, rows, columns and channels of the output."""

    def check_fields(self) -> None:
        """Checks the fields with bounds, and that windows fit into an image with its padding.

        Raises:
            InvalidInput: names the field.
        """
        for one in fields_of(type(self)):
            value, least, most = getattr(self, one.name), one.metadata.get("ge", 0), one.metadata.get("le")
            if most and not least <= value <= most:
                raise InvalidInput(one.name, f"is {value}", f"use {least} to {most}")
        if not 0 <= self.padding <= self.kernel // 2:
            problem = f"is {self.padding} around windows of {self.kernel} x {self.kernel}"
            raise InvalidInput("padding", problem, f"use 0 to {self.kernel // 2}")
        if min(self.height, self.width) + 2 * self.padding < self.kernel:
            problem = f"is {self.kernel}, but an image with its padding is smaller"
            raise InvalidInput("kernel", problem, "use a smaller one, or larger images")

    def check_elements(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Checks that no tensor, by what it is, has too many elements.

        Raises:
            InvalidInput: one has.
        """
        for what, (rows, columns) in sizes.items():
            if rows * columns > MAX_ELEMENTS:
                raise InvalidInput(
                    "images",
                    f"{what} of {rows} x {columns} elements overflows a 32-bit index",
                    f"keep every tensor at or under {MAX_ELEMENTS} elements",
                )

    @property
    def out_height(self) -> int:
        """Rows of an image of the output."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Columns of an image of the output."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def in_shape(self) -> tuple[int, int, int, int]:
        """Images, rows, columns and channels of the input."""
        return self.images, self.height, self.width, self.channels

    @cached_property
    def m(self) -> int:
        """Pixels of all images of the output."""
        return self.images * self.out_height * self.out_width

    @cached_property
    def source_shape(self) -> tuple[int, int]:
        """Pixels of all input images, and channels."""
        return self.images * self.height * self.width, self.channels

    def check_shared(self, ops: Sequence[Op]) -> None:
        """Checks that it sees images that it shares with an earlier op of images as that one does, not only as many
        elements.

        Raises:
            InvalidInput: they differ, with the field that does.
        """
        for op in takewhile(lambda op: op is not self, ops):
            if not isinstance(op, ImageOp):
                continue
            shared = {op.name: op.out_shape, op.source: op.in_shape}
            seen = shared.get(self.source, self.in_shape)
            for name, own, size in zip(_SIZES, self.in_shape, seen, strict=True):
                if own != size:
                    verb = "writes" if self.source == op.name else "reads"
                    problem = f"is {own}, but {op.name} {verb} {self.source} as {_by(seen)}"
                    raise InvalidInput(f"{self.name}.{name}", problem, f"use {size}, or another tensor")
            added = getattr(self, "residual_source", "")
            if (seen := shared.get(added, self.out_shape)) != self.out_shape:
                problem = f"is {added} of {_by(seen)}"
                raise InvalidInput(f"{self.name}.residual_source", problem, f"add images of {_by(self.out_shape)}")

    def check_place(self, ops: Sequence[Op], dtype: Dtype) -> None:
        """Checks that the element type has 16 bits.

        Raises:
            InvalidInput: the element type has a different size.
        """
        if dtype.row.bits != 16:
            raise InvalidInput(
                "dtype", f"is {dtype}, which {self.name}, an op of images, does not support", "use fp16 or bf16"
            )

    def place_of(self, row: int, column: int) -> str:
        """The pixel that an element of the output belongs to."""
        image, pixel = divmod(row, self.out_height * self.out_width)
        y, x = divmod(pixel, self.out_width)
        return f"image {image}, pixel {y}, {x}, channel {column}"


def _by(shape: Sequence[int]) -> str:
    return f"images x rows x columns x channels = {' x '.join(map(str, shape))}"


class AskedImages(AskedOp):
    """An op on images, with the fields of its class of ops."""

    #: Its images determine the number of its rows.
    HAS_OWN_ROWS: ClassVar[bool] = True
    #: The class of the op.
    OP: ClassVar[type[ImageOp]]

    def to_op(self, m: int, dtype: Dtype) -> ImageOp:
        """The op; the number of rows of other ops does not matter.

        Raises:
            InvalidInput: a field is invalid; the message starts with the op's name.
        """
        given = {one.name: getattr(self, one.name) for one in fields_of(self)}
        if "residual" in given:
            given["residual_source"] = given.pop("residual") or ""
        try:
            return self.OP(**given)
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}.{error.field}", error.problem, error.remedy) from error

    @classmethod
    def of(cls, op: ImageOp) -> Self:
        """Inverse of `to_op`."""
        given = {one.name: getattr(op, one.name) for one in fields_of(cls) if one.name != "residual"}
        added = getattr(op, "residual_source", "")
        return cls(**given, **({"residual": added} if added else {}))
