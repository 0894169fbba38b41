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


def found(m: int, speedup: float | None, kernel: Kernel | None = STAND_IN) -> Found:
    return Found(m=m, kernel=kernel, speedup=speedup, interval=None)


@settings(deadline=None, max_examples=50)
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
        is_near = measured is not None and m > measured // 2
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


@pytest.mark.parametrize(("speedup", "is_ours"), [(1.019, False), (1.02, True), (None, False)])
def test_the_library_is_kept_where_the_gain_is_below_the_least(speedup: float | None, is_ours: bool) -> None:
    rung = make_entry(SHAPE, [found(16, speedup)], min_gain=1.02).rungs[1]
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
