"""The values that are offered on each axis of an ordering."""

from __future__ import annotations

from itertools import product

from tuner.core.schedule.ordering import Granularity, Interleave, InterleaveKind, Raster, RasterKind

RASTERS = (
    Raster(kind=RasterKind.ROW),
    Raster(kind=RasterKind.COLUMN),
    *(Raster(kind=RasterKind.GROUPED, width=width) for width in (2, 4, 8, 16)),
    *(Raster(kind=RasterKind.PANEL, width=width) for width in (2, 4, 8, 16)),
    *(Raster(kind=RasterKind.SNAKE, width=width) for width in (1, 2, 4, 8)),
    Raster(kind=RasterKind.MORTON),
    Raster(kind=RasterKind.HILBERT),
)
INTERLEAVES = (
    Interleave(),
    *(Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in (1, 2, 4, 8, 16)),
    *(Interleave(kind=InterleaveKind.BANDS, rows=rows, lag=lag) for rows, lag in ((1, 1), (1, 2), (2, 1), (4, 1))),
    *(Interleave(kind=InterleaveKind.BANDS, rows=rows, chunks=chunks) for rows in (1, 4) for chunks in (2, 4)),
    Interleave(kind=InterleaveKind.HALF_ROWS),
    Interleave(kind=InterleaveKind.PROPORTIONAL),
    Interleave(kind=InterleaveKind.LONGEST_FIRST),
)
#: (granularity, sync width).
SYNCS = (
    (Granularity.ROW, 1),
    (Granularity.TILE, 1),
    *((Granularity.CHUNK, width) for width in (2, 4, 8)),
    *((Granularity.STRIDED, width) for width in (2, 4)),
    *((Granularity.BATCH, width) for width in (2, 4)),
    (Granularity.BARRIER, 1),
)
#: (CTAs per SM, reserved SMs).
GRIDS = tuple(product((1, 2), (0, 4)))
