"""From the results of one shape at several m to its ladder: which range of rows runs which kernel, or the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.core.trial.ladder import gains_between, served_from

from .contents import Entry, Kernel, Rung, Shape

#: The most rows that a ladder speaks of: an index of 32 bits, as the runtime has them.
MAX_ROWS = 2**31 - 1
#: The least speed-up over the library for which a kernel is kept, unless somebody says otherwise.
DEFAULT_MIN_GAIN = 1.02


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the finals of one m said."""

    m: int
    #: The winner's kernel; None where the library won.
    kernel: Kernel | None
    #: The library's time over the winner's, and its 95 % interval.
    speedup: float | None
    interval: tuple[float, float] | None
    #: The winner's time and the library's, microseconds; None where that was not measured.
    time_us: float | None = None
    library_us: float | None = None
    #: What the winner gains, the library counting as 1; None where nothing was measured.
    best_speedup: float | None = None
    #: How the library was called; empty where that is not known.
    library: Mapping[str, Any] = field(default_factory=dict)
    #: Where it comes from, e.g. the job; for people.
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def is_kept(self, min_gain: float) -> bool:
        """Whether our kernel is worth it."""
        return self.kernel is not None and self.speedup is not None and self.speedup >= min_gain

    def is_kept_below(self, library_below_us: float | None, min_gain: float) -> bool:
        """Whether our kernel gains at fewer rows, too, down to those where the library took `library_below_us`."""
        if self.time_us is None or self.library_us is None:
            return False
        return gains_between(self.time_us, self.library_us, library_below_us, min_gain)


def make_entry(shape: Shape, results: Sequence[Found], *, min_gain: float = DEFAULT_MIN_GAIN) -> Entry:
    """The ladder of a shape: every number of rows has exactly one answer, the library above the largest m.

    A kernel serves its own m where it gains enough there, and rows between that and the next smaller m where it must
    gain as much. Elsewhere the library does.
    """
    rungs: list[Rung] = []
    end, library_below_us = 0, None
    for result in sorted(results, key=lambda result: result.m):
        begin = served_from(result.m, end)
        if result.is_kept(min_gain) and not result.is_kept_below(library_below_us, min_gain):
            begin = result.m
        if begin > end + 1:
            rungs.append(Rung(m_lo=end + 1, m_hi=begin - 1, kernel=None))
        rungs.append(
            Rung(
                m_lo=begin,
                m_hi=result.m,
                kernel=result.kernel if result.is_kept(min_gain) else None,
                library=result.library,
                speedup=result.speedup,
                interval=result.interval,
                provenance=result.provenance,
            )
        )
        end, library_below_us = result.m, result.library_us
    rungs.append(Rung(m_lo=end + 1, m_hi=MAX_ROWS, kernel=None))
    return Entry(shape=shape, rungs=tuple(rungs))
