"""When a GPU is unhealthy, and whether it is shared."""

from __future__ import annotations

import pytest

from tuner.workers.protocol.card_health import MEMORY_SLACK_BYTES, CardCheck, Neighbourhood, num_foreign, trouble


def check(*, is_right: bool = True, clock_mhz: float = 1900, max_clock_mhz: int = 1980, bits: int = 0) -> CardCheck:
    return CardCheck(is_right=is_right, clock_mhz=clock_mhz, max_clock_mhz=max_clock_mhz, clock_event_bits=bits)


@pytest.mark.parametrize(
    ("bits", "is_fit"),
    [
        (0, True),
        (0x1, True),
        (0x4, True),
        (0x20, True),
        (0x8, False),
        (0x40, False),
        (0x80, False),
        (0x4 | 0x48, False),
    ],
)
def test_hardware_that_slows_a_card_down_makes_it_unfit_and_its_own_power_limit_does_not(
    bits: int, is_fit: bool
) -> None:
    assert (trouble(check(bits=bits)) == "") is is_fit


def test_every_reason_is_named() -> None:
    assert "a hardware slowdown and a hardware thermal slowdown" in trouble(check(bits=0x48))
    assert "345 of 1980 MHz" in trouble(check(clock_mhz=345))
    assert "wrong results" in trouble(check(is_right=False))


def test_half_of_the_clock_is_enough_and_an_unknown_clock_is_not_held_against_a_card() -> None:
    assert trouble(check(clock_mhz=990)) == ""
    assert trouble(check(clock_mhz=989)) != ""
    assert trouble(check(clock_mhz=100, max_clock_mhz=0)) == ""


CONTEXT_BYTES = 500 * 2**20


def neighbourhood(before: set[int], after: set[int], used_before_bytes: int = 0) -> Neighbourhood:
    return Neighbourhood(
        own_pid=10,
        pids_before=frozenset(before),
        pids_after=frozenset(after),
        used_before_bytes=used_before_bytes,
        used_after_bytes=used_before_bytes + CONTEXT_BYTES,
    )


@pytest.mark.parametrize(
    ("before", "after", "now", "foreign"),
    [
        (set(), {10}, {10}, 0),
        (set(), {10}, {10, 77}, 1),
        ({77}, {77, 10}, {77, 10}, 1),
        (set(), {4711}, {4711}, 0),  # a container, in which the driver has a different number for us
        ({77}, {77, 4711}, {77, 4711, 78}, 2),
    ],
)
def test_processes_that_the_driver_lists_are_counted_without_our_own(
    before: set[int], after: set[int], now: set[int], foreign: int
) -> None:
    assert num_foreign(neighbourhood(before, after), now, 0, 0) == foreign


def test_where_the_driver_lists_nobody_memory_tells() -> None:
    alone = neighbourhood(set(), set())
    own_bytes = CONTEXT_BYTES + 2**30
    assert num_foreign(alone, [], own_bytes, 2**30) == 0
    assert num_foreign(alone, [], own_bytes + MEMORY_SLACK_BYTES, 2**30) == 0
    assert num_foreign(alone, [], own_bytes + MEMORY_SLACK_BYTES + 1, 2**30) == 1
    assert num_foreign(neighbourhood(set(), set(), 10 * 2**30), [], 10 * 2**30 + CONTEXT_BYTES, 0) == 1
