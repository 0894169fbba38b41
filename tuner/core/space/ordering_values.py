"""The proposed values on each axis of an ordering; others are legal, but must be requested (ADR 0048)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

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
#: The ops with which later runs of a chain begin, with one launch per run.
RunStarts = tuple[int, ...]
#: (CTAs per SM, reserved SMs).
GRIDS = tuple(product((1, 2), (0, 4)))


def run_starts_of(num_ops: int, forced: tuple[int, ...] = ()) -> tuple[RunStarts, ...]:
    """The ops with which later runs begin, in every way that leaves at least two runs and at least one run of two
    ops; those with fewer launches come first. A run begins with each op of `forced`. Without forced starts there are
    2^(n-1) - 2 ways: 6 for four ops, 126 for eight."""
    later = range(1, num_ops)
    ways = (starts for count in range(1, num_ops - 1) for starts in combinations(later, count))
    return tuple(starts for starts in ways if set(forced) <= set(starts))


def near_run_starts(num_ops: int, starts: RunStarts, forced: tuple[int, ...] = ()) -> Iterator[RunStarts]:
    """Cuts with one run more, one run fewer, or one boundary moved by one op; a run begins with each op of `forced`."""
    legal = set(run_starts_of(num_ops, forced))
    toggled = (set(starts) ^ {op} for op in range(1, num_ops))
    moved = (set(starts) - {op} | {op + step} for op in starts for step in (-1, 1))
    found = dict.fromkeys(tuple(sorted(starts)) for starts in (*toggled, *moved))
    yield from (other for other in found if other in legal and other != starts)
