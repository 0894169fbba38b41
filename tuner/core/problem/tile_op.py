"""A tile op: the interface for the scheduler, the plans and the engines that share launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.core.problem.dtype import UINT8, Dtype
from tuner.core.problem.epilogue.part import PLAIN
from tuner.core.problem.ops.op import Op, Role, Tensor

if TYPE_CHECKING:
    from tuner.core.problem.epilogue.part import Part

#: Maximum elements of a matrix: the device's indices are int32, and it counts past the matrix to the end of a tile, in
#: strides of a CTA.
MAX_ELEMENTS = 2**31 - 2**16


@dataclass(frozen=True, kw_only=True)
class Im2col:
    """Pixels of images that TMA loads, row by row and image by image, at each position of a filter.

    Source: PTX ISA, "Tensors", im2col mode.
    """

    #: Sizes of the images, elements.
    images: int
    height: int
    width: int
    channels: int
    #: Offsets from an image's first row and column to those of the first pixel, and from its last row and column to
    #: those of the last pixel.
    lower: int
    upper: int
    #: Distance from one loaded pixel to the next, along rows and columns.
    stride: int

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Strides along channels, columns, rows and images."""
        return (1, self.stride, self.stride, 1)


class TileOp(Op):
    """An op of tiles, which may share a launch with others.

    Its kind also defines `n`, the columns that its tiles divide, and `k`, the depth of its sums, which is 0 without
    weights. The arguments of its kernel are the tensor `source`, weights [weight_rows, k] named ``<op>.weight``, the
    output, and for an op that is not a product all `others` of its tensors.
    """

    #: Whether the engines' main loop multiplies its tiles, rows of `source` by rows of W, step by step. Otherwise the
    #: module ``source`` of its kind defines the task.
    IS_PRODUCT: ClassVar[bool] = False
    #: For a product: whether rows of A are not rows of `source`. Then the kind's module ``source`` defines where their
    #: elements are, and its modules ``reference``, ``costs`` and ``card`` replace those of products.
    GATHERS: ClassVar[bool] = False

    def __getattr__(self, name: str) -> Any:
        """The default of an option that the op's kind does not have."""
        if name in PLAIN:
            return PLAIN[name]
        raise AttributeError(f"a {self.KIND} has no {name!r}")

    if TYPE_CHECKING:

        @property
        def source(self) -> str:
            """The tensor that its tiles read: an earlier op, or any other name for an input."""

        @property
        def n(self) -> int:
            """Columns that its tiles divide."""

        @property
        def k(self) -> int:
            """Elements of a row of W."""

    def to_json(self) -> dict[str, Any]:
        """Same as for any op, but always with its source, since programs that run a kernel need it."""
        return {**super().to_json(), "source": self.source}

    def others(self, dtype: Dtype) -> tuple[Tensor, ...]:
        """For an op that is not a product, its tensors other than source, W and output: more inputs, weights and
        outputs, and tensors that it changes in place. For a product: more outputs."""
        if self.IS_PRODUCT:
            return ()
        plain = (self.source, f"{self.name}.weight", self.name)
        return tuple(one for one in self.tensors(dtype) if one.name not in plain)

    @property
    def made(self) -> tuple[Tensor, ...]:
        """Those of `others` that later ops may read."""
        return tuple(one for one in self.others(Dtype.FP16) if one.role is Role.OUTPUT)

    @property
    def changed(self) -> tuple[str, ...]:
        """Empty for products, which do not name the caches that they write to."""
        return () if self.IS_PRODUCT else super().changed

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts of its epilogue, in order."""
        return ()

    def stored_in(self, dtype: Dtype) -> Dtype:
        """The element type of its output, in a workload of type `dtype`."""
        stored: Dtype | None = self.out_dtype
        return stored or dtype

    @property
    def halves(self) -> str:
        """Names of the rows of W that belong to a column of the output; empty if there is only one."""
        return ""

    @property
    def scales_rows(self) -> bool:
        """Whether each row of the output has a factor."""
        return False

    @property
    def rows_per_column(self) -> int:
        """Rows of W per column of the output."""
        return 1

    @property
    def weight_rows(self) -> int:
        """Rows of W."""
        return self.n * self.rows_per_column

    def weight_bits(self, dtype: Dtype) -> int:
        """Bits of a stored element of W, without factors."""
        return self.weights.row.bits if self.weights else 8 * dtype.size_bytes

    def stored_weights(self, dtype: Dtype) -> tuple[tuple[int, int], str]:
        """Shape and element type of stored W: codes are bytes, followed by their factors."""
        if self.weights is None:
            return (self.weight_rows, self.k), str(dtype)
        return (self.weight_rows, self.weights.row.row_bytes(self.k)), UINT8.name

    def about_weights(self, dtype: Dtype) -> dict[str, str | int | bool] | None:
        """A description of W's codes; None if W is stored in the type in which it is multiplied."""
        return self.weights.row.about(self.k, str(dtype)) if self.weights else None

    def weights_an_element(self, dtype: Dtype) -> int:
        """How many stored weights take the space of one element."""
        return 8 * dtype.size_bytes // self.weight_bits(dtype)

    @property
    def has_weights(self) -> bool:
        """Whether it has weights; otherwise its kernel gets no address of W."""
        return self.weight_rows * self.k > 0

    def tensor_of(self, operand: str) -> str:
        """Manifest name of the tensor that is the kernel's `a`, `w` or `c`."""
        return {"a": self.source, "w": f"{self.name}.w", "c": self.name}[operand]

    @property
    def source_shape(self) -> tuple[int, int]:
        """Rows of its source tensor, and elements per row."""
        return next(read.shape for read in self.reads if read.tensor == self.source)

    @property
    def source_columns(self) -> int:
        """Elements per row of its source tensor."""
        return self.source_shape[1]

    @property
    def is_plain_product(self) -> bool:
        """Whether it multiplies the rows of `source` themselves."""
        return self.IS_PRODUCT and not self.GATHERS

    @property
    def im2col(self) -> Im2col | None:
        """For an op that gathers its rows: how TMA loads them; None if it cannot."""
        return None

    def row_extents(self, tile_m: int) -> list[int]:
        """Rows of each tile row, for tiles of at most `tile_m` rows."""
        return [min(tile_m, self.m - begin) for begin in range(0, self.m, tile_m)]

    def tile_grid(self, tile_m: int, tile_n: int) -> tuple[int, int]:
        """Rows and columns of the grid of tiles of `tile_m` x `tile_n`."""
        return -(-self.m // tile_m), -(-self.n // tile_n)

    def num_steps(self, tile_k: int) -> int:
        """Steps of a tile, each `tile_k` deep."""
        return -(-self.k // tile_k)

    def epilogue_bytes(self, dtype: Dtype) -> int:
        """Bytes that its epilogue reads."""
        return 0
