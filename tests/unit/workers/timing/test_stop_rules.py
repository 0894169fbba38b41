"""When rounds end: pure rules, tested on lists of numbers."""

from __future__ import annotations

import random

from tuner.core.problem.objective import Regime
from tuner.workers.timing.stop_rules import StopRule, stop_rule

RULE = StopRule(min_rounds=5, max_rounds=50, rel_error=0.002, seconds=1.0)


def noisy(count: int, sigma: float) -> list[float]:
    draw = random.Random(1)
    return [draw.gauss(1.0, sigma) for _ in range(count)]


def test_too_few_rounds_are_never_enough() -> None:
    assert not RULE.is_over([1.0] * 4, elapsed_s=100.0)


def test_quiet_ratios_end_at_the_least_number_of_rounds() -> None:
    assert RULE.is_over([1.0, 1.0001, 0.9999, 1.0, 1.0], elapsed_s=0.0)


def test_noisy_ratios_go_on_until_the_limit_of_rounds_or_of_time() -> None:
    assert not RULE.is_over(noisy(20, 0.05), elapsed_s=0.5)
    assert RULE.is_over(noisy(20, 0.05), elapsed_s=1.1)
    assert RULE.is_over(noisy(50, 0.05), elapsed_s=0.5)


def test_the_standard_error_decides_and_falls_with_the_rounds() -> None:
    rule = StopRule(min_rounds=5, max_rounds=10_000, rel_error=0.002, seconds=100.0)
    # 1.25 sigma / sqrt(n) < 0.002 at sigma 0.01 from about n = 39 on.
    assert not rule.is_over(noisy(20, 0.01), elapsed_s=0.0)
    assert rule.is_over(noisy(80, 0.01), elapsed_s=0.0)


def test_sustained_takes_fewer_rounds_since_each_costs_its_load() -> None:
    sustained, burst = stop_rule(Regime.SUSTAINED), stop_rule(Regime.BURST)
    assert (sustained.min_rounds, sustained.max_rounds) < (burst.min_rounds, burst.max_rounds)


def test_sustained_rounds_span_a_swing_of_the_clock_at_the_power_limit() -> None:
    rule, round_s = stop_rule(Regime.SUSTAINED), 0.16
    taken = next(num for num in range(1, 20) if rule.is_over(noisy(num, 0.05), elapsed_s=num * round_s))
    assert 0.9 < taken * round_s < 1.0


def test_dropped_rounds_count_towards_the_limits_but_not_towards_the_error() -> None:
    assert not RULE.is_over([1.0] * 4, elapsed_s=0.0, num_taken=49)
    assert RULE.is_over([1.0] * 4, elapsed_s=0.0, num_taken=50)
    assert RULE.is_over([], elapsed_s=1.1, num_taken=5)
    assert not RULE.is_over([], elapsed_s=1.1, num_taken=4)
