"""Which samples are valid according to SM clocks: the mean clock between two readings of the counters, and the rounds
that it invalidates. Pure.

A reading is one row per SM: (sample number, SM cycles, nanoseconds of the global timer). An SM's cycle counter and the
timer are read together before and after a sample. The quotient of the two differences is the mean clock of that SM
during that sample. This is valid whatever ran in between, including a library's graph.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.core.problem.objective import Regime
from tuner.core.trial.samples import DropReason

#: Burst: the minimum share of the highest clock among samples of the same graph.
MIN_SHARE_OF_HIGHEST = 0.95
#: Sustained: the maximum relative distance from the median clock of samples of the same graph.
MAX_OFF_MEDIAN = 0.05
#: Bits of the clocks' event reasons that invalidate a sample under load: hardware slowdown, software and hardware
#: thermal slowdown, external power brake. The power cap (0x04) does not: it is the regime itself. Source: NVML API
#: reference, nvmlClocksEventReasons.
SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample with its clock."""

    #: Time of one run, microseconds.
    time_us: float
    #: Mean SM clock over the sample, MHz; 0 if it is unknown.
    clock_mhz: int = 0
    #: The driver's reasons for the clock, as bits; 0 if they were not read.
    event_bits: int = 0


def mean_clock_mhz(front: np.ndarray[Any, Any], behind: np.ndarray[Any, Any], sample: int) -> int:
    """The median over the SMs that were read on both sides of a sample; 0 if there is none.

    `front` and `behind` are [num_sms, 3] integers, one row per SM; rows left over from other samples are ignored.
    """
    both = (front[:, 0] == sample) & (behind[:, 0] == sample)
    cycles, ns = (behind[both].astype(np.int64) - front[both].astype(np.int64))[:, 1:].T
    advanced = ns > 0
    if not advanced.any():
        return 0
    return round(1e3 * float(np.median(cycles[advanced] / ns[advanced])))


def drop_reasons(tracks: Sequence[Sequence[Sample]], regime: Regime) -> list[DropReason | None]:
    """Why each round is invalid, or None; `tracks` are [graph][round], and a round is valid or invalid as a whole.

    An unknown clock invalidates nothing.
    """
    if not tracks or not tracks[0]:
        return []
    rounds = list(zip(*tracks, strict=True))
    if regime is Regime.BURST:
        # Different graphs have different clocks: idle tensor cores leave power for a higher clock.
        least_mhz = [MIN_SHARE_OF_HIGHEST * max(sample.clock_mhz for sample in track) for track in tracks]
        return [DropReason.SLOW_CLOCK if _is_slow(row, least_mhz) else None for row in rounds]
    middles_mhz = [_median_known(track) for track in tracks]
    return [_why_off(row, middles_mhz) for row in rounds]


def _is_slow(row: Sequence[Sample], least_mhz: Sequence[float]) -> bool:
    """Whether a round of the burst regime has a sample with too low a clock."""
    return any(0 < sample.clock_mhz < least for sample, least in zip(row, least_mhz, strict=True))


def _median_known(track: Sequence[Sample]) -> float:
    known = [sample.clock_mhz for sample in track if sample.clock_mhz]
    return statistics.median(known) if known else 0.0


def _why_off(row: Sequence[Sample], middles_mhz: Sequence[float]) -> DropReason | None:
    """Why a round of the sustained regime is invalid; None if it is valid."""
    if any(sample.event_bits & SLOWDOWN_BITS for sample in row):
        return DropReason.SLOWDOWN
    for sample, middle_mhz in zip(row, middles_mhz, strict=True):
        if sample.clock_mhz and abs(sample.clock_mhz - middle_mhz) > MAX_OFF_MEDIAN * middle_mhz:
            return DropReason.OFF_CLOCK
    return None
