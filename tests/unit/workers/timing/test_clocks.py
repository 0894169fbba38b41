"""The clock of a sample from two readings of every SM, and which rounds are invalid because of clocks."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.core.problem.objective import Regime
from tuner.core.trial.samples import DropReason
from tuner.workers.timing.clocks import Sample, drop_reasons, mean_clock_mhz


def reading(sample: int, cycles: list[int], ns: int) -> np.ndarray:
    return np.array([[sample, count, ns + i] for i, count in enumerate(cycles)], dtype=np.uint64)


def track(*clocks_mhz: int, bits: int = 0) -> list[Sample]:
    return [Sample(time_us=10.0, clock_mhz=mhz, event_bits=bits) for mhz in clocks_mhz]


def test_the_clock_is_cycles_over_nanoseconds_of_the_same_sm_whatever_its_counter_started_at() -> None:
    front = reading(7, [2**40, 5, 1000], ns=10**15)
    behind = reading(7, [2**40 + 396_000, 5 + 396_000, 1000 + 396_000], ns=10**15 + 200_000)
    assert mean_clock_mhz(front, behind, 7) == 1980


def test_an_sm_without_a_reading_of_this_sample_is_left_out() -> None:
    front, behind = reading(7, [0, 0, 0], ns=0), reading(7, [150_000, 150_000, 900_000], ns=100_000)
    behind[2, 0] = 6
    assert mean_clock_mhz(front, behind, 7) == 1500
    front[:2, 0] = 6
    assert mean_clock_mhz(front, behind, 7) == 0


def test_one_sm_whose_counter_went_astray_changes_nothing() -> None:
    front, behind = reading(1, [0] * 5, ns=0), reading(1, [100_000] * 4 + [5], ns=100_000)
    assert mean_clock_mhz(front, behind, 1) == 1000


def test_a_timer_that_has_not_moved_gives_no_clock() -> None:
    front, behind = reading(1, [0], ns=0), reading(1, [100], ns=0)
    assert mean_clock_mhz(front, behind, 1) == 0


def test_burst_drops_rounds_below_95_per_cent_of_the_highest_clock_of_a_kind() -> None:
    candidate, library = track(1980, 1880, 1981, 1980), track(1980, 1980, 1980, 1700)
    slow = DropReason.SLOW_CLOCK
    assert drop_reasons([candidate, library], Regime.BURST) == [None, slow, None, slow]
    assert drop_reasons([track(1980, 1882)], Regime.BURST) == [None, None]


def test_burst_drops_nothing_where_one_kind_is_slower_by_its_own_doing() -> None:
    """Samples of an H200: ours of 192 rows is power-limited, the library's is not; a SIMT kernel needs the least
    power."""
    assert drop_reasons([track(1646, 1652, 1648), track(1484, 1473, 1486)], Regime.BURST) == [None] * 3
    assert drop_reasons([track(1818, 1820, 1817), track(1973, 1975, 1972)], Regime.BURST) == [None] * 3


def test_sustained_drops_what_is_off_the_median_of_its_own_kind() -> None:
    """The kinds differ in clock because of their own load: only a sample that differs from others of its kind is
    dropped."""
    candidate, library = track(1300, 1310, 1290, 1400), track(1700, 1600, 1705, 1710)
    off = DropReason.OFF_CLOCK
    assert drop_reasons([candidate, library], Regime.SUSTAINED) == [None, off, None, off]


@pytest.mark.parametrize(("bits", "dropped"), [(0x08, True), (0x20, True), (0x40, True), (0x80, True), (0x04, False)])
def test_sustained_drops_what_was_slowed_down_for_heat_but_not_for_power(bits: int, dropped: bool) -> None:
    rounds = drop_reasons([track(1300, bits=bits), track(1300)], Regime.SUSTAINED)
    assert rounds == [DropReason.SLOWDOWN if dropped else None]


@pytest.mark.parametrize("regime", list(Regime))
def test_an_unknown_clock_spoils_nothing(regime: Regime) -> None:
    assert drop_reasons([track(0, 0), track(1980, 1980)], regime) == [None, None]
    assert drop_reasons([track(0, 0)], regime) == [None, None]
    assert drop_reasons([], regime) == drop_reasons([[], []], regime) == []
