"""Every number of rows has one answer: the kernel of the next measured m where it gains enough, else the library."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.packs import ffn, make
from tuner.packs.contents import Kernel, Shape
from tuner.packs.ladder import MAX_ROWS, Found, make_entry
from tuner.packs.read import read_pack
from tuner.packs.write import pack_bytes

KERNELS = {m: make(workload=ffn(m)).kernel for m in (1, 2, 4, 8, 16, 24)}
SHAPE = Shape.of_workload(KERNELS[1].manifest["workload"])
#: Of no use but to be told apart.
STAND_IN = Kernel(files={})


def found(m: int, speedup: float | None, kernel: Kernel | None = STAND_IN, library_us: float = 10.0) -> Found:
    """By default the library takes as long for all rows."""
    time_us = None if speedup is None else library_us / speedup
    return Found(m=m, kernel=kernel, speedup=speedup, interval=None, time_us=time_us, library_us=library_us)


@settings(max_examples=50)
@given(
    results=st.dictionaries(st.integers(1, 600), st.one_of(st.none(), st.floats(0.8, 1.5)), max_size=40),
    min_gain=st.floats(0.9, 1.2),
)
def test_every_m_resolves_to_exactly_one_kernel_or_the_library(
    results: dict[int, float | None], min_gain: float
) -> None:
    rungs = make_entry(SHAPE, [found(m, gain) for m, gain in results.items()], min_gain=min_gain).rungs
    for m in (*range(1, 601), MAX_ROWS):
        [rung] = [rung for rung in rungs if rung.m_lo <= m <= rung.m_hi]
        measured = min((other for other in results if other >= m), default=None)
        is_near = measured is not None and (m == measured or (m > max(measured // 2, min(results))))
        gain = results[measured] if measured is not None else None
        assert (rung.kernel is not None) == (is_near and gain is not None and gain >= min_gain)
        assert rung.kernel is None or rung.m_hi == measured


def test_a_kernel_does_not_serve_less_than_half_of_its_rows() -> None:
    rungs = make_entry(SHAPE, [found(1, 1.1), found(64, 1.1)]).rungs
    assert [(rung.m_lo, rung.m_hi, rung.kernel is not None) for rung in rungs] == [
        (1, 1, True),
        (2, 32, False),
        (33, 64, True),
        (65, MAX_ROWS, False),
    ]


@pytest.mark.parametrize(
    ("library_below_us", "time_us", "begin"),
    [(8.0, 7.8, 97), (8.0, 7.9, 128), (10.0, 9.8, 97), (11.0, 9.8, 97), (9.9, 9.8, 128)],
)
def test_between_two_measured_m_a_kernel_serves_only_where_it_beats_the_library_at_both(
    library_below_us: float, time_us: float, begin: int
) -> None:
    below, own = found(96, None, None, library_below_us), found(128, 10.0 / time_us)
    entry = make_entry(SHAPE, [below, own], min_gain=1.02)
    assert [(rung.m_lo, rung.m_hi) for rung in entry.rungs if rung.kernel] == [(begin, 128)]
    assert entry.at(97) is not None


def test_below_the_smallest_m_and_where_no_time_is_known_a_kernel_serves_its_own_rows_alone() -> None:
    untimed = [Found(m=m, kernel=STAND_IN, speedup=1.5, interval=None) for m in (16, 32)]
    for results, served in (([found(16, 1.5), found(32, 1.5)], [(16, 16), (17, 32)]), (untimed, [(16, 16), (32, 32)])):
        assert [(rung.m_lo, rung.m_hi) for rung in make_entry(SHAPE, results).rungs if rung.kernel] == served


@pytest.mark.parametrize(("speedup", "is_ours"), [(1.019, False), (1.02, True), (None, False)])
def test_the_library_is_kept_where_the_gain_is_below_the_least(speedup: float | None, is_ours: bool) -> None:
    rung = make_entry(SHAPE, [found(16, speedup)], min_gain=1.02).at(16)
    assert rung is not None
    assert (rung.kernel is not None) == is_ours
    assert rung.speedup == speedup


def test_a_ladder_is_what_a_pack_takes_and_gives_back() -> None:
    entry = make_entry(SHAPE, [found(m, 1.1, kernel) for m, kernel in KERNELS.items()])
    [back] = read_pack(pack_bytes([entry])).entries
    for m in range(1, 601):
        mine, its = entry.at(m), back.at(m)
        assert mine is not None
        assert its is not None
        assert (mine.kernel and mine.kernel.digest) == (its.kernel and its.kernel.digest)
