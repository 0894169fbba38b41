"""Every m has one answer: the fastest kernel for this or a larger m if it gains enough, else the library."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.packs import ffn, make
from tuner.packs.contents import Kernel
from tuner.packs.ladder import MAX_ROWS, Found, make_entry
from tuner.packs.read import read_pack
from tuner.packs.shapes import Shape
from tuner.packs.write import pack_bytes

KERNELS = {m: make(workload=ffn(m)).kernel for m in (1, 2, 4, 8, 16, 24)}
SHAPE = Shape.of_workload(KERNELS[1].manifest["workload"])
#: Only used to tell them apart.
STAND_IN = Kernel(files={})


def found(m: int, speedup: float | None, kernel: Kernel | None = STAND_IN, library_us: float = 10.0) -> Found:
    """By default, the library takes the same time for all rows."""
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
    # A gain is a quotient of times, so whether one reaches a least gain equal to it depends on the last bit.
    assume(all(gain is None or abs(gain - min_gain) > 1e-9 for gain in results.values()))
    own = {m: found(m, gain, Kernel(files={str(m): b""})) for m, gain in results.items()}
    rungs = make_entry(SHAPE, list(own.values()), min_gain=min_gain).rungs
    for m in (*range(1, 601), MAX_ROWS):
        [rung] = [rung for rung in rungs if rung.m_lo <= m <= rung.m_hi]
        gains = {other: gain for other, gain in results.items() if other >= m and gain is not None and gain >= min_gain}
        if m in results or rung.kernel is not None:
            served_by = [own[other] for other in gains if own[other].kernel is rung.kernel]
            assert [one.speedup for one in served_by] == ([max(gains.values())] if gains else [])
        if rung.kernel is not None:
            assert rung.m_hi == min(other for other in results if other >= m)


def test_a_kernel_does_not_serve_less_than_half_of_its_rows_beside_a_faster_one() -> None:
    rungs = make_entry(SHAPE, [found(1, 1.11, Kernel(files={})), found(64, 1.1)]).rungs
    assert [(rung.m_lo, rung.m_hi, rung.kernel is not None) for rung in rungs] == [
        (1, 1, True),
        (2, 32, False),
        (33, 64, True),
        (65, MAX_ROWS, False),
    ]


@pytest.mark.parametrize(
    ("time_us", "library_us", "served"),
    [
        (8.2, 10.0, [(1, 1), (2, 16), (17, 64)]),  # as fast as that of one row, so that fewer kernels are used
        (8.3, 10.0, [(1, 1), (9, 16), (17, 64)]),  # slower than that of one row
        (7.9, 8.0, [(1, 1), (2, 16)]),  # gains too little at 64 rows, but serves fewer
        (9.9, 12.0, [(1, 1), (64, 64)]),  # gains too little where fewer rows were measured
    ],
)
def test_a_kernel_serves_fewer_rows_where_it_is_no_slower_with_all_of_its_own(
    time_us: float, library_us: float, served: list[tuple[int, int]]
) -> None:
    """Its gain there is given as a bound: the library's time there over the kernel's time with all of its rows."""
    large = Kernel(files={"large": b""})
    results = [
        found(1, 10.0 / 8.2, Kernel(files={})),
        found(16, None, None),
        Found(
            m=64,
            kernel=large,
            speedup=library_us / time_us,
            interval=(1.0, 2.0),
            time_us=time_us,
            library_us=library_us,
        ),
    ]
    rungs = [rung for rung in make_entry(SHAPE, results).rungs if rung.kernel]
    assert [(rung.m_lo, rung.m_hi) for rung in rungs] == served
    assert (rungs[0].kernel is large) == (time_us <= 8.2)
    for rung in rungs:
        if rung.kernel is large and rung.m_hi < 64:
            assert rung.speedup == pytest.approx(10.0 / time_us)
            assert rung.interval is None


@pytest.mark.parametrize(
    ("library_below_us", "time_us", "serves_below"),
    [(8.0, 7.8, True), (8.0, 7.9, False), (10.0, 9.8, True), (11.0, 9.8, True), (9.9, 9.8, False)],
)
def test_between_two_measured_m_a_kernel_serves_only_where_it_beats_the_library_at_both(
    library_below_us: float, time_us: float, serves_below: bool
) -> None:
    below, own = found(96, None, None, library_below_us), found(128, 10.0 / time_us)
    entry = make_entry(SHAPE, [below, own], min_gain=1.02)
    served = [(96, 96), (97, 128)] if serves_below else [(128, 128)]
    assert [(rung.m_lo, rung.m_hi) for rung in entry.rungs if rung.kernel] == served
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
