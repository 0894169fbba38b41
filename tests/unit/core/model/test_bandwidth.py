"""Transfers that share a rate equally, in virtual time, compared with calculations by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.core.model.caches.bandwidth import FairShare


def ends_of(arrivals: list[tuple[float, float]], rate: float = 10.0) -> dict[int, float]:
    """When each transfer ends; (begin, bytes) in the order in which they begin."""
    share, ends, waiting = FairShare(rate), dict[int, float](), list(enumerate(arrivals))
    while waiting or share.next_us < math.inf:
        if waiting and waiting[0][1][0] <= share.next_us:
            transfer, (begin_us, num_bytes) = waiting.pop(0)
            share.begin(transfer, num_bytes, begin_us)
        else:
            now_us = share.next_us
            ends[share.end()] = now_us
    return ends


def test_one_transfer_has_the_whole_rate() -> None:
    assert ends_of([(5.0, 100.0)]) == {0: 15.0}


def test_equal_transfers_end_together_and_a_late_one_slows_the_first() -> None:
    assert ends_of([(0.0, 100.0), (0.0, 100.0)]) == {0: 20.0, 1: 20.0}
    # Alone until 5 (50 bytes), then at half the rate: 50 more take 10.
    assert ends_of([(0.0, 100.0), (5.0, 100.0)]) == {0: 15.0, 1: 20.0}


def test_what_is_left_of_a_transfer() -> None:
    share = FairShare(10.0)
    share.begin(0, 100.0, 0.0)
    share.begin(1, 20.0, 4.0)
    assert share.left(0, 4.0) == pytest.approx(0.6)
    assert share.left(0, 8.0) == pytest.approx(0.4)
    assert share.left(1, 8.0) == pytest.approx(0.0)
    assert share.left(9, 8.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1, 200)), min_size=1, max_size=12))
def test_the_rate_is_used_up_and_never_exceeded(arrivals: list[tuple[float, float]]) -> None:
    arrivals.sort()
    ends = ends_of(arrivals)
    for transfer, (begin_us, num_bytes) in enumerate(arrivals):
        assert ends[transfer] >= begin_us + num_bytes / 10.0 - 1e-6
    busy_us = free_us = 0.0
    for begin_us, num_bytes in arrivals:  # a busy period ends when all of its bytes have been transferred
        free_us = max(free_us, begin_us) + num_bytes / 10.0
        busy_us += num_bytes / 10.0
    assert max(ends.values()) == pytest.approx(free_us)
