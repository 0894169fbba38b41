"""What the tiles of a convolution read and write."""

from __future__ import annotations

import numpy as np

from tuner.core.plan.graph.boxes import STEP, Box, BoxRead, Extent, Ints, TileSpace, along, whole
from tuner.core.schedule.tiling import Tile
from tuner.ops.conv.images import ImageOp
from tuner.ops.conv.op import ConvOp


def lower(op: ConvOp, tile: Tile, chosen: None = None, *, num_parts: int = 1, in_band: bool = False) -> TileSpace:
    """Tiles of output pixels, numbered through all images, and of filters.

    Before its first step, a tile reads all channels of the input pixels from the first to the last that its output
    pixels depend on: the pixels of its rows and a halo, only in the images to which its own pixels belong.
    """
    pixels, filters = along(0, op.m, tile.m), along(1, op.n, tile.n)
    reads = [BoxRead(box=Box(tensor=op.source, extents=(read_pixels(op, tile.m), whole(op.channels))), in_band=in_band)]
    for tensor, _ in (read for part in reversed(op.parts) for read in part.late_reads(op)):
        reads.append(BoxRead(box=Box(tensor=tensor, extents=(pixels, filters)), is_late=True))
    reads.append(BoxRead(box=Box(tensor=f"{op.name}.weight", extents=(filters, along(STEP, op.k, tile.k)))))
    return TileSpace(
        name=op.name,
        grid=(len(pixels.begin), len(filters.begin)),
        num_steps=op.num_steps(tile.k),
        num_parts=num_parts,
        writes=(Box(tensor=op.name, extents=(pixels, filters)),),
        reads=tuple(reads),
    )


def read_pixels(op: ImageOp, tile_m: int) -> Extent:
    """[tiles] from the first pixel of the images that a tile reads to the last one, as rows of their matrix."""
    first = np.arange(0, op.m, tile_m, dtype=np.int64)
    last = np.minimum(first + tile_m, op.m) - 1
    none = op.source_shape[0]
    begin, end = np.full(len(first), none), np.zeros(len(first), dtype=np.int64)
    for y in range(op.kernel):
        for x in range(op.kernel):
            lowest, highest = _inside(op, first, y, x, 1), _inside(op, last, y, x, -1)
            is_read = lowest <= highest
            begin = np.where(is_read, np.minimum(begin, _read_by(op, lowest, y, x)), begin)
            end = np.where(is_read, np.maximum(end, _read_by(op, highest, y, x) + 1), end)
    return Extent(axes=(0,), begin=np.minimum(begin, end), end=end)


def _inside(op: ImageOp, pixels: Ints, y: int, x: int, way: int) -> Ints:
    """For each output pixel, the nearest pixel in a direction for which element (y, x) of a filter is inside an
    image. `way` is 1 to search later pixels, -1 to search earlier ones."""
    rows, columns = _places(op, op.height, op.out_height, y), _places(op, op.width, op.out_width, x)
    image, row, column = np.unravel_index(pixels, (op.images + 1, op.out_height, op.out_width))
    image, row, column = (one.astype(np.int64) for one in (image, row, column))
    if way < 0:  # the same search, from the end
        row, column = op.out_height - 1 - row, op.out_width - 1 - column
        rows, columns = (
            [size - 1 - one for one in reversed(places)]
            for size, places in ((op.out_height, rows), (op.out_width, columns))
        )
    if not (rows[0] <= rows[1] and columns[0] <= columns[1]):
        return np.full(len(pixels), op.m if way > 0 else -1)
    row = row + (column > columns[1])
    column = np.where((column > columns[1]) | (column < columns[0]), columns[0], column)
    image = image + way * (row > rows[1])
    column = np.where((row > rows[1]) | (row < rows[0]), columns[0], column)
    row = np.where((row > rows[1]) | (row < rows[0]), rows[0], row)
    if way < 0:
        row, column = op.out_height - 1 - row, op.out_width - 1 - column
    return np.asarray((image * op.out_height + row) * op.out_width + column)


def _places(op: ImageOp, size: int, out_size: int, place: int) -> list[int]:
    """The first and the last row, or column, of the output for which element `place` of a filter is inside an image."""
    before = max(0, op.padding - place)
    return [-(-before // op.stride), min(out_size - 1, (size - 1 + op.padding - place) // op.stride)]


def _read_by(op: ImageOp, pixels: Ints, y: int, x: int) -> Ints:
    """The input pixels that output pixels read for element (y, x) of a filter."""
    image, row, column = np.unravel_index(np.clip(pixels, 0, op.m - 1), (op.images, op.out_height, op.out_width))
    rows, columns = (one * op.stride + place - op.padding for one, place in ((row, y), (column, x)))
    return np.asarray((image * op.height + rows) * op.width + columns)
