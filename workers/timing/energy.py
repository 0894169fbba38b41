"""Energy of a run, from a counter that changes too rarely for just two readings. Pure.

The driver's counter of a card's energy changes in steps of tens of milliseconds. So the card works without a pause, and
the counter is read every few milliseconds. Only readings directly after a change are used, between which both energy
and time are known. Under such a load, runs end at a constant rate, so energy per run is power divided by rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Minimum seconds between the first valid step and the last one.
WINDOW_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The counter, while the card works."""

    #: Seconds on any clock.
    at_s: float
    #: Millijoules since an arbitrary start.
    total_mj: float
    #: Runs finished since an arbitrary start.
    num_runs: int


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy of one run, for the whole card: its idle power is not subtracted."""

    #: Millijoules of one run.
    run_mj: float
    #: Mean power over the window, watts.
    power_w: float
    #: Seconds between the first and the last step.
    window_s: float


def steps(readings: Sequence[Reading]) -> list[Reading]:
    """The readings at which the counter had just changed."""
    return [now for before, now in pairwise(readings) if now.total_mj != before.total_mj]


def is_enough(readings: Sequence[Reading]) -> bool:
    """Whether the steps span the window."""
    moved = steps(readings)
    return len(moved) >= 2 and moved[-1].at_s - moved[0].at_s >= WINDOW_S


def energy_of(readings: Sequence[Reading]) -> Energy | None:
    """Energy and power between the first step and the last; None if the steps do not span the window."""
    if not is_enough(readings):
        return None
    moved = steps(readings)
    begin, end = moved[0], moved[-1]
    window_s = end.at_s - begin.at_s
    power_w = (end.total_mj - begin.total_mj) / 1e3 / window_s
    runs_per_s = (readings[-1].num_runs - readings[0].num_runs) / (readings[-1].at_s - readings[0].at_s)
    return Energy(run_mj=1e3 * power_w / runs_per_s, power_w=power_w, window_s=window_s)
