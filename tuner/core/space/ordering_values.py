"""The proposed values on each axis of an ordering; others are legal, but must be requested (ADR 0048)."""

from __future__ import annotations

from itertools import product

from tuner.core.schedule.ordering import Assignment, Granularity, Interleave, InterleaveKind, Raster, RasterKind

RASTERS = tuple(Raster(kind=kind, width=width) for kind in RasterKind for width in kind.row.widths)
INTERLEAVES = (
    Interleave(),
    *(Interleave(kind=InterleaveKind.BANDS, rows=rows) for rows in (1, 2, 4, 8, 16)),
    Interleave(kind=InterleaveKind.PROPORTIONAL),
    Interleave(kind=InterleaveKind.LONGEST_FIRST),
)
#: (granularity, sync width).
SYNCS = (
    (Granularity.ROW, 1),
    (Granularity.TILE, 1),
    *((Granularity.CHUNK, width) for width in (2, 4, 8)),
    *((Granularity.STRIDED, width) for width in (2, 4)),
    (Granularity.BARRIER, 1),
)
ASSIGNMENTS = (Assignment.STATIC, Assignment.TICKET, Assignment.FIRST_WAVE)
#: (CTAs per SM, reserved SMs).
GRIDS = tuple(product((1, 2), (0, 4)))
