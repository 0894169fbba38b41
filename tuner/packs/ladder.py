"""Makes ladders from the finals of shapes: which range of sizes runs which kernel, or the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.core.trial.ladders.ladder import Served, ranges
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.shapes import AnyShape

#: The maximum number of rows in a ladder, a 32-bit index as in the runtime.
MAX_ROWS = 2**31 - 1
#: The default minimum speed-up over the library for which a kernel is used.
DEFAULT_MIN_GAIN = 1.02


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of the finals for one m."""

    m: int
    #: Tokens of the longest context; 0 if there is no cache. Then `m` is the number of sequences.
    max_length: int = 0
    #: The winner's kernel; None if the library won.
    kernel: Kernel | None
    #: The library's time divided by the winner's, and its 95 % interval.
    speedup: float | None
    interval: tuple[float, float] | None
    #: The winner's time and the library's, microseconds; None if not measured.
    time_us: float | None = None
    library_us: float | None = None
    #: The winner's gain, at least 1 for the library; None if nothing was measured.
    best_speedup: float | None = None
    #: How the library was called; empty if unknown.
    library: Mapping[str, Any] = field(default_factory=dict)
    #: Its origin as text, e.g. the job.
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def is_kept(self, min_gain: float) -> bool:
        """Whether our kernel is used."""
        return self.kernel is not None and self.speedup is not None and self.speedup >= min_gain

    def gain_over(self, library_us: float | None) -> float | None:
        """The minimum gain of our kernel for at most its own number of rows; `library_us` is the library's time for
        them.
        """
        if self.kernel is None or self.time_us is None or library_us is None:
            return None
        return library_us / self.time_us


def make_entries(results: Sequence[tuple[AnyShape, Found]], *, min_gain: float = DEFAULT_MIN_GAIN) -> tuple[Entry, ...]:
    """The ladder of each tuned shape."""
    by_shape: dict[AnyShape, list[Found]] = {}
    for shape, found in results:
        by_shape.setdefault(shape, []).append(found)
    return tuple(make_entry(shape, of_it, min_gain=min_gain) for shape, of_it in by_shape.items())


def make_entry(shape: AnyShape, results: Sequence[Found], *, min_gain: float = DEFAULT_MIN_GAIN) -> Entry:
    """The ladder of a shape. Sequences and contexts that were not tuned have no entry. For rows, every number has
    exactly one entry, which is the library above the largest m.

    A kernel serves its own m if it gains enough there, and rows between that and the next smaller m if its guaranteed
    gain is enough. A kernel takes no longer with fewer rows. So it also serves a smaller m if it is, with all of
    its rows, at least as fast as the kernel for that m; then it also serves all rows in between. The library serves the
    rest.
    """
    ordered = sorted(results, key=lambda result: (result.m, result.max_length))
    if not shape.by_rows or shape.has_fixed_rows:
        kept = [result if result.is_kept(min_gain) else None for result in ordered]
        return Entry(shape=shape, rungs=tuple(map(_rung, [result.m for result in ordered], ordered, kept)))
    servers = [_server(result, ordered[i + 1 :], min_gain) for i, result in enumerate(ordered)]
    served = [
        Served(
            m=result.m,
            kernel=server and id(server.kernel),
            time_us=server.time_us if server else None,
            library_us=result.library_us,
        )
        for result, server in zip(ordered, servers, strict=True)
    ]
    at = {result.m: (result, server) for result, server in zip(ordered, servers, strict=True)}
    rungs = [
        Rung(m_lo=begin, m_hi=end, kernel=None) if one is None else _rung(begin, *at[end])
        for begin, end, one in ranges(served, min_gain)
    ]
    above = Rung(m_lo=max(at, default=0) + 1, m_hi=MAX_ROWS, kernel=None)
    return Entry(shape=shape, rungs=(*rungs, above))


def _server(result: Found, larger: Sequence[Found], min_gain: float) -> Found | None:
    """Whose kernel runs at the m of a result: the fastest among its own and those for more rows; among equally fast
    ones the one for the most rows, so that fewer kernels are needed. None means the library."""
    own = [result] if result.is_kept(min_gain) else []
    if own and result.time_us is None:
        return result
    gaining = [other for other in larger if (other.gain_over(result.library_us) or 0.0) >= min_gain]
    return min([*own, *gaining], key=lambda found: (found.time_us, -found.m), default=None)


def _rung(begin: int, result: Found, server: Found | None) -> Rung:
    """The rows up to the result's own number. If another result's kernel serves them, its gain is a bound without an
    interval.
    """
    if server is None or server is result:
        kernel = None if server is None else server.kernel
        speedup, interval, provenance = result.speedup, result.interval, result.provenance
    else:
        kernel, speedup = server.kernel, server.gain_over(result.library_us)
        interval, provenance = None, server.provenance
    return Rung(
        m_lo=begin,
        m_hi=result.m,
        max_length=result.max_length,
        kernel=kernel,
        library=result.library,
        speedup=speedup,
        interval=interval,
        provenance=provenance,
    )
