"""The tensor maps of a wgmma kernel's operands, as plain numbers: the description of each matrix for TMA.

A line is 128 bytes of k: the width of the shared-memory swizzle. If a matrix's rows are whole lines, the lines of a row
are a dimension of the map, so that one request loads a stage of several lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tuner.core.legal.own_tasks import products
from tuner.core.legal.warpgroups.workloads import LINE_BYTES, line_elements
from tuner.core.legal.wgmma import (
    COLUMNS,
    PAIR_ROWS,
    WARP_ROWS,
    is_paired,
    stage_slice,
)
from tuner.core.problem.tile_op import Im2col, TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.tiling import Epilogue, Tiling


class MapSizes(Protocol):
    """The driver's arguments for any map, except the address of its tensor."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Elements, innermost first."""

    @property
    def strides_bytes(self) -> tuple[int, ...]:
        """Bytes, for all dimensions but the innermost."""

    @property
    def box(self) -> tuple[int, ...]:
        """Elements that one request loads or stores; in im2col mode channels and pixels."""


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """Arguments of cuTensorMapEncodeTiled, or of cuTensorMapEncodeIm2col, except the address; no interleave, swizzle
    128 bytes, L2 promotion of 128 bytes, and zeros outside the tensor."""

    #: Index of the op, and its operand: ``a`` or ``w``, or its output ``c``.
    op: int
    operand: str
    #: Elements, innermost first.
    dims: tuple[int, ...]
    #: Bytes, for all dimensions but the innermost.
    strides_bytes: tuple[int, ...]
    #: Elements that one request loads or stores; in im2col mode channels and pixels.
    box: tuple[int, ...]
    #: Corners and strides, in im2col mode; else element strides are 1.
    im2col: Im2col | None = None

    @property
    def manifest(self) -> dict[str, Any]:
        """The map's fields in a manifest; corners, (column, row) each, exist only in im2col mode."""
        strides = self.im2col.strides if self.im2col else (1,) * len(self.dims)
        corners = {"corners": [[self.im2col.lower] * 2, [self.im2col.upper] * 2]} if self.im2col else {}
        sizes = {"dims": self.dims, "strides_bytes": self.strides_bytes, "box": self.box}
        return {**sizes, "element_strides": list(strides), **corners}


def has_whole_lines(op: TileOp, dtype: Dtype) -> bool:
    """Whether the rows of A and W are whole lines."""
    return op.k % (line_elements(dtype) * op.weights_an_element(dtype)) == 0


def _paired_map(index: int, op: TileOp, dtype: Dtype, slice_: tuple[int, int]) -> TensorMap:
    """The map of a gated op's weights [2n, k], alternating 8 rows of the gate and 8 of the up projection; a slice is
    (rows, lines).
    """
    rows, lines = slice_
    line, columns = line_elements(dtype), op.k // op.weights_an_element(dtype)
    row_bytes = columns * dtype.size_bytes
    return TensorMap(
        op=index,
        operand="w",
        dims=(line, COLUMNS, 2, op.n // COLUMNS, columns // line),
        strides_bytes=(row_bytes, op.n * row_bytes, COLUMNS * row_bytes, LINE_BYTES),
        box=(line, COLUMNS, 2, rows // PAIR_ROWS, lines),
    )


def tensor_maps(workload: Workload, tiling: Tiling) -> tuple[TensorMap, ...]:
    """The maps in the order of the launch parameter: every product's inputs, every product's weights, and if TMA stores
    tiles, every product's output."""
    dtype = workload.dtype
    maps, line = [], line_elements(dtype)
    for operand in ("a", "w"):
        for index, op, tile in products(workload, tiling):
            rows, tile_rows = (op.m, tile.m) if operand == "a" else (op.weight_rows, tile.n)
            sharers = tiling.cluster_n if operand == "a" else tiling.cluster_m
            share = op.weights_an_element(dtype) if operand == "w" else 1
            columns, depth = op.k // share, tile.k // share
            box_rows, box_lines = stage_slice(tile_rows, depth // line, sharers)
            row_bytes = columns * dtype.size_bytes
            by_line = has_whole_lines(op, dtype)
            if operand == "w" and is_paired(op, tiling):
                maps.append(_paired_map(index, op, dtype, stage_slice(2 * tile.n, depth // line, sharers)))
                continue
            if operand == "a" and op.im2col:
                maps.append(_im2col_map(index, op.im2col, dtype, box_rows))
                continue
            maps.append(
                TensorMap(
                    op=index,
                    operand=operand,
                    dims=(line, rows, columns // line) if by_line else (columns, rows),
                    strides_bytes=(row_bytes, LINE_BYTES) if by_line else (row_bytes,),
                    box=(line, box_rows, box_lines) if by_line else (line, box_rows),
                )
            )
    if tiling.epilogue is Epilogue.TMA:
        maps += [_output_map(index, op, dtype) for index, op, _ in products(workload, tiling)]
    return tuple(maps)


def _im2col_map(index: int, im2col: Im2col, dtype: Dtype, num_pixels: int) -> TensorMap:
    """The map of images [images, height, width, channels]: a request loads a line of `num_pixels` pixels."""
    pixel_bytes = im2col.channels * dtype.size_bytes
    row_bytes = im2col.width * pixel_bytes
    return TensorMap(
        op=index,
        operand="a",
        dims=(im2col.channels, im2col.width, im2col.height, im2col.images),
        strides_bytes=(pixel_bytes, row_bytes, im2col.height * row_bytes),
        box=(line_elements(dtype), num_pixels),
        im2col=im2col,
    )


def _output_map(index: int, op: TileOp, dtype: Dtype) -> TensorMap:
    """The map of C [m, n]: a box is a warp's rows of a block, one line wide."""
    return TensorMap(
        op=index,
        operand="c",
        dims=(op.n, op.m),
        strides_bytes=(op.n * dtype.size_bytes,),
        box=(line_elements(dtype), WARP_ROWS),
    )
