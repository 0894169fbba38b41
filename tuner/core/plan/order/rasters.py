"""Paths over one op's tile grid, and the simplest name of each.

On small blocks, many curves are the same path: Morton on two columns is `row`, Hilbert on two rows is `snake1`.
`tuner.core.legal.legality` refuses all names but the simplest, which `plain_name` finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tuner.core.plan.order.exact_rasters import MAX_SIDE, best_path
from tuner.core.plan.order.panel_cache import CachePolicy, Tile, traffic
from tuner.core.schedule.ordering import Raster, RasterKind
from tuner.errors import InvalidInput

Ints = npt.NDArray[np.int64]

ROW, COLUMN = Raster(), Raster(kind=RasterKind.COLUMN)
#: Kinds of raster, those with the simplest names first.
_RANK = tuple(RasterKind)
#: From this many tile rows and columns on, Morton and Hilbert differ from every panel, group and snake.
_UNLIKE_ANY_FROM = 5


@lru_cache(maxsize=32)
def raster_order(raster: Raster, num_rows: int, num_cols: int) -> tuple[Ints, Ints]:
    """Tile rows and tile columns of a grid in the raster's order, each [num_rows * num_cols], read-only.

    Raises:
        InvalidInput: exact paths of a grid this large are not known; or a package's curve does not have each tile once.
    """
    index = np.arange(num_rows * num_cols, dtype=np.int64)
    row, col = index // num_cols, index % num_cols
    match raster.kind:
        case RasterKind.ROW:
            order = index
        case RasterKind.COLUMN:
            order = np.lexsort((row, col))
        case RasterKind.GROUPED:
            order = np.lexsort((row, col, row // raster.width))
        case RasterKind.PANEL:
            order = np.lexsort((col, row, col // raster.width))
        case RasterKind.SNAKE:
            panel = col // raster.width
            order = np.lexsort((col, np.where(panel % 2, -row, row), panel))
        case RasterKind.MORTON:
            order = np.argsort(2 * _spread(row) + _spread(col))
        case RasterKind.HILBERT:
            order = np.array([r * num_cols + c for r, c in hilbert(num_rows, num_cols)], dtype=np.int64)
        case RasterKind.EXACT:
            order = np.array([r * num_cols + c for r, c in best_path(num_rows, num_cols, raster.width)], dtype=np.int64)
        case _:
            order = _of_package(raster, num_rows, num_cols)
    rows, cols = row[order], col[order]
    rows.setflags(write=False)
    cols.setflags(write=False)
    return rows, cols


def _of_package(raster: Raster, num_rows: int, num_cols: int) -> Ints:
    order, number = raster.kind.row.order, num_rows * num_cols
    assert order is not None, raster
    found = np.asarray(order(np, num_rows, num_cols, raster.width))
    if found.shape != (number,) or not np.array_equal(np.sort(found), np.arange(number)):
        problem = f"its package does not have each of {num_rows} x {num_cols} tiles once"
        raise InvalidInput(f"raster {raster}", problem, "use another raster")
    return found.astype(np.int64)


def _spread(values: Ints) -> Ints:
    """The numbers with bit i moved to bit 2 i."""
    spread = np.zeros_like(values)
    for bit in range(int(values.max()).bit_length()):
        spread |= ((values >> bit) & 1) << (2 * bit)
    return spread


def hilbert(num_rows: int, num_cols: int) -> Iterator[tuple[int, int]]:
    """A Hilbert-like curve over any rectangle, from tile (0, 0); each step leads to an adjacent tile.

    The curve runs from one corner to the next along its major side. By a chessboard colouring, that is possible if
    the major side is even or the minor one odd, so the longer side is the major one where possible.

    Source: the recursion of Cerveny, "Space-filling curve for rectangular domains of arbitrary size", 2018. See NOTICE.
    """
    longer_is_cols = num_cols >= num_rows
    major, minor = (num_cols, num_rows) if longer_is_cols else (num_rows, num_cols)
    along_cols = longer_is_cols if major % 2 == 0 or minor % 2 else not longer_is_cols
    if along_cols:
        yield from _curve((0, 0), (0, 1), num_cols, (1, 0), num_rows)
    else:
        yield from _curve((0, 0), (1, 0), num_rows, (0, 1), num_cols)


Pair = tuple[int, int]


def _curve(at: Pair, major: Pair, length: int, minor: Pair, height: int) -> Iterator[Pair]:
    """The curve from `at`, `length` tiles along the unit step `major` and `height` along `minor`."""
    if height == 1 or length == 1:
        step, count = (major, length) if height == 1 else (minor, height)
        yield from ((at[0] + i * step[0], at[1] + i * step[1]) for i in range(count))
        return
    half = length // 2
    if 2 * length > 3 * height:  # long: two curves, one after the other
        half += half % 2 if length > 2 else 0
        yield from _curve(at, major, half, minor, height)
        yield from _curve(_moved(at, major, half), major, length - half, minor, height)
        return
    rise = height // 2
    rise += rise % 2 if height > 2 else 0
    back = (-major[0], -major[1]), (-minor[0], -minor[1])
    yield from _curve(at, minor, rise, major, half)
    yield from _curve(_moved(at, minor, rise), major, length, minor, height - rise)
    corner = _moved(_moved(at, major, length - 1), minor, rise - 1)
    yield from _curve(corner, back[1], rise, back[0], length - half)


def _moved(at: Pair, step: Pair, count: int) -> Pair:
    return at[0] + count * step[0], at[1] + count * step[1]


def standard_rasters(num_rows: int, num_cols: int) -> list[Raster]:
    """The distinct rasters of a grid except the exact ones, with the simplest names first."""
    widths = range(1, max(num_rows, num_cols))
    offered = (
        Raster(kind=kind, width=width)
        for kind in RasterKind
        if kind is not RasterKind.EXACT
        for width in (widths[kind.row.least_width - 1 :] if kind.row.has_width else (1,))
    )
    shape = frozenset({(num_rows, num_cols)})
    return [raster for raster in offered if plain_name(raster, shape) == raster]


def raster_path(raster: Raster, num_rows: int, num_cols: int) -> list[Tile]:
    """The tiles of a grid in the raster's order.

    Raises:
        InvalidInput: exact paths of a grid this large are not known.
    """
    rows, cols = raster_order(raster, num_rows, num_cols)
    return list(zip(rows.tolist(), cols.tolist(), strict=True))


def standard_traffic(
    num_rows: int, num_cols: int, cache_panels: int, num_steps: int = 1, policy: CachePolicy = CachePolicy.LRU
) -> dict[Raster, int]:
    """Operand panels (pieces, if there are several k-steps) that each distinct raster loads through a cache of
    `cache_panels`, least first."""
    panels = {
        raster: traffic(raster_path(raster, num_rows, num_cols), cache_panels, num_steps, policy)
        for raster in standard_rasters(num_rows, num_cols)
    }
    return dict(sorted(panels.items(), key=lambda item: item[1]))


def plain_name(raster: Raster, shapes: frozenset[tuple[int, int]]) -> Raster:
    """The simplest raster with the same order as `raster` for blocks of these `shapes` (tile rows, tile columns)."""
    names = {shape: _name_on(raster, *shape) for shape in shapes}
    for name in sorted(set(names.values()), key=_rank):
        if _rank(name) < _rank(raster) and all(_name_on(name, *shape) == names[shape] for shape in shapes):
            return name
    return raster


def _rank(raster: Raster) -> tuple[int, int]:
    return _RANK.index(raster.kind), raster.width


@lru_cache(maxsize=65536)
def _name_on(raster: Raster, num_rows: int, num_cols: int) -> Raster:
    """The simplest name of the path over one block."""
    kind, width = raster.kind, raster.width
    if num_rows == 1 or num_cols == 1:
        return ROW
    if kind in (RasterKind.PANEL, RasterKind.SNAKE) and width >= num_cols:
        return ROW
    if kind is RasterKind.GROUPED and width >= num_rows:
        return COLUMN
    is_large = min(num_rows, num_cols) >= _UNLIKE_ANY_FROM
    is_other = kind in (RasterKind.MORTON, RasterKind.HILBERT, RasterKind.EXACT) and not is_large
    if not is_other and not kind.row.is_added:
        return raster
    mine = raster_order(raster, num_rows, num_cols)
    for name in _alike(*mine):
        if _rank(name) < _rank(raster) and _same(mine, raster_order(name, num_rows, num_cols)):
            return _name_on(name, num_rows, num_cols)
    return raster


def _same(mine: tuple[Ints, Ints], theirs: tuple[Ints, Ints]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _alike(rows: Ints, cols: Ints) -> Iterator[Raster]:
    """The rasters that begin like this path: its first turn determines the only possible width."""
    down, right = int(np.argmax(rows != rows[0])), int(np.argmax(cols != cols[0]))
    yield from (ROW, COLUMN)
    for kind, width in ((RasterKind.GROUPED, right), (RasterKind.PANEL, down)):
        if width > 1:
            yield Raster(kind=kind, width=width)
    yield from (Raster(kind=RasterKind.SNAKE, width=down), Raster(kind=RasterKind.MORTON))
    yield Raster(kind=RasterKind.HILBERT)
    if max(rows.max(), cols.max()) < MAX_SIDE:
        yield from (Raster(kind=RasterKind.EXACT, width=width) for width in range(2, 8))
