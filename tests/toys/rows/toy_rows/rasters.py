"""Rasters: a spiral from the outside to the middle, and panels of which every other one runs first."""

from __future__ import annotations

from typing import Any

from tuner.extend import RasterRow


def _spiral(xp: Any, rows: int, columns: int, width: int) -> Any:
    """The first row, the last column, and so on."""
    left, found = xp.arange(rows * columns).reshape(rows, columns), []
    while left.size:
        found += left[0].tolist()
        left = left[1:].T[::-1]
    return xp.array(found)


def _comb(xp: Any, rows: int, columns: int, width: int) -> Any:
    """Panels of `width` columns: the even ones, then the odd ones; column by column in each."""
    tiles = xp.arange(rows * columns)
    row, column = tiles // columns, tiles % columns
    panel = column // width
    return xp.lexsort((row, column, panel, panel % 2))


SPIRAL = RasterRow(name="spiral", number=200, sentence="from the outside to the middle", order=_spiral)
COMB = RasterRow(
    name="comb",
    number=201,
    sentence="in panels of {width} tile columns, every second panel first",
    widths=(1, 2, 4),
    order=_comb,
)
RASTERS = (SPIRAL, COMB)
