"""How long tasks poll for signals."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.core.model.caches.polling import Polls
from tuner.core.plan.table.words import Plan

POLL_US = 0.5


def plan_of(*waits: tuple[int, int, int]) -> Plan:
    """One task that waits for the signals from the first to before the second, before a step."""
    tasks = np.array([[0, 0, 0, 0, len(waits), -1, 0, 0, 0, 0, 1]], dtype=np.int32)
    words = np.array([[begin, end, 1, 1, step] for begin, end, step in waits], dtype=np.int32).reshape(-1, 5)
    num_signals = max((end for _, end, _ in waits), default=0)
    return Plan(tasks=tasks, waits=words, queues=np.array([], dtype=np.int32), num_signals=num_signals, num_ctas=1)


def seen_us(plan: Plan, set_us: dict[int, float], begin_us: float, now_us: float) -> float:
    polls = Polls(plan, 32, POLL_US)
    for signal, at_us in set_us.items():
        polls.post(signal, at_us)
    return polls.seen_us(0, begin_us, now_us)


def test_a_task_that_comes_late_needs_all_passes() -> None:
    assert seen_us(plan_of((0, 96, 0)), dict.fromkeys(range(96), 1.0), 20.0, 20.0) == 21.5
    assert seen_us(plan_of((0, 97, 0)), dict.fromkeys(range(97), 1.0), 20.0, 20.0) == 22.0


@pytest.mark.parametrize(("last", "passes"), [(0, 3), (31, 3), (32, 2), (95, 1)])
def test_a_task_that_waits_needs_the_passes_from_the_signal_that_is_set_last(last: int, passes: int) -> None:
    set_us = dict.fromkeys(range(96), 1.0) | {last: 30.0}
    assert seen_us(plan_of((0, 96, 0)), set_us, 2.0, 30.0) == 30.0 + passes * POLL_US


def test_waits_are_polled_in_turn_and_those_of_later_steps_meanwhile() -> None:
    plan = plan_of((0, 8, 0), (8, 16, 0), (16, 48, 3))
    assert seen_us(plan, {3: 5.0}, 0.0, 5.0) == 6.0  # the second wait is over, and still polled
    assert seen_us(plan, {12: 5.0}, 0.0, 5.0) == 5.5
    assert Polls(plan, 32, POLL_US).later_us == [1.0]
    assert Polls(plan_of((0, 8, 2)), 32, POLL_US).later_us == [0.0]  # one check covers few signals


def test_a_task_without_waits_polls_nothing() -> None:
    assert seen_us(plan_of(), {}, 3.0, 3.0) == 3.0
