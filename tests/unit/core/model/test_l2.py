"""Panels in the L2: which is evicted first, and which is written back."""

from __future__ import annotations

from tuner.core.model.caches.l2 import FIRST, L2, LAST, NORMAL


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    cache = L2(100)
    assert [cache.touch(panel, 40) for panel in (1, 2, 1, 3, 1, 2)] == [40, 40, 0, 40, 0, 40]
    assert cache.touch(9, 101) == 101
    assert cache.touch(9, 101) == 101


def test_a_panel_that_comes_by_and_by_is_read_once() -> None:
    cache = L2(100)
    assert [cache.touch(1, size) for size in (10, 30, 30)] == [10, 20, 0]
    assert cache.held(1) == 30
    assert cache.held(2) == 0


def test_what_is_to_go_first_goes_before_what_is_older() -> None:
    cache = L2(100)
    for panel, hint in ((1, LAST), (2, NORMAL), (3, FIRST)):
        cache.touch(panel, 30, hint)
    cache.touch(4, 30, NORMAL)
    assert [cache.held(panel) for panel in (1, 2, 3, 4)] == [30, 30, 0, 30]
    cache.touch(5, 30, NORMAL)
    assert [cache.held(panel) for panel in (1, 2, 4, 5)] == [30, 0, 30, 30]
    cache.touch(1, 30, FIRST)  # requested with another class, it moves
    cache.touch(6, 30, NORMAL)
    assert [cache.held(panel) for panel in (1, 4, 5, 6)] == [0, 30, 30, 30]


def test_what_was_written_goes_to_the_dram_when_it_is_evicted() -> None:
    cache = L2(100)
    cache.write(1, 20, 60)
    cache.write(1, 20, 60)
    assert cache.held(1) == 40
    assert cache.evicted_bytes == 0
    cache.touch(2, 80)
    assert cache.evicted_bytes == 40
    assert cache.touch(1, 60) == 60, "it is read back"
    cache.touch(3, 80)
    assert cache.evicted_bytes == 40, "data that is read is not written again"
