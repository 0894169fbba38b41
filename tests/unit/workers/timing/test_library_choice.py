from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tuner.workers.timing.library_choice import MARGIN, MAX_ROUNDS, MIN_ROUNDS, Choices, Picked, pick_streams
from tuner.workers.timing.library_choice import pick as pick_by

#: [op][algorithm] microseconds.
TIMES_US = ((50.0, 40.0, 60.0), (30.0, 31.0, 25.0, 29.0))
OFFERED = tuple(range(len(op)) for op in TIMES_US)


def pick(offered: Sequence[Sequence[int]], sample_us: Callable[[Choices], float], **clock: Any) -> Picked:
    """Picks with nine rounds, using the same samples for the contest."""
    return pick_by(
        offered,
        sample_us,
        lambda first, best: ([sample_us(first) for _ in range(9)], [sample_us(best) for _ in range(9)]),
        **clock,
    )


def sampler(noise: float, times_us: tuple[tuple[float, ...], ...] = TIMES_US) -> Callable[[Choices], float]:
    draw = random.Random(0)
    return lambda choices: sum(op[i] for op, i in zip(times_us, choices, strict=True)) * draw.uniform(1, 1 + noise)


def test_the_best_of_each_op_are_put_together() -> None:
    picked = pick(OFFERED, sampler(0.02))
    assert picked.choices == (1, 2)
    assert picked.first_us == pytest.approx(80, rel=0.02)
    assert picked.best_us == pytest.approx(65, rel=0.02)
    tags = {metric.tag: metric.value for metric in picked.metrics(["up", "down"])}
    assert (tags["library_algorithm_up"], tags["library_algorithm_down"]) == (1, 2)
    assert (tags["library_first_us"], tags["library_best_us"]) == (picked.first_us, picked.best_us)


def test_the_first_stays_where_the_others_only_looked_faster() -> None:
    """All are equal: the minimum of eight noisy figures is below the first one's, and the contest detects that."""
    alike = ((50.0,) * 8, (30.0,) * 8)
    for seed in range(20):
        draw = random.Random(seed)
        picked = pick([range(8), range(8)], lambda _, draw=draw: 80 * draw.uniform(1, 1 + MARGIN))  # type: ignore[misc]
        assert picked.choices == (0, 0)
        assert picked.best_us == picked.first_us
    assert pick([range(8), range(8)], sampler(0.0, alike)).choices == (0, 0)


def test_a_best_that_is_slower_together_is_not_taken() -> None:
    """Each is faster alone; together they are slower, as when both need the cache."""

    def sample_us(choices: Choices) -> float:
        return {(0, 0): 80.0, (1, 0): 75.0, (0, 1): 75.0, (1, 1): 90.0}[choices]

    assert pick([range(2), range(2)], sample_us).choices == (0, 0)


def test_what_does_not_run_is_never_sampled() -> None:
    seen = set()

    def sample_us(choices: Choices) -> float:
        seen.add(choices)
        return 80.0

    pick([[0, 2], [0]], sample_us)
    assert seen == {(0, 0), (2, 0)}


@pytest.mark.parametrize(("seconds_a_sample", "rounds"), [(0.0, MAX_ROUNDS), (1.0, MIN_ROUNDS)])
def test_rounds_end_with_the_time(seconds_a_sample: float, rounds: int) -> None:
    now, count = [0.0], [0]

    def sample_us(_: Choices) -> float:
        now[0] += seconds_a_sample
        count[0] += 1
        return 80.0

    pick([range(3)], sample_us, clock=lambda: now[0])
    assert count[0] == 3 * rounds


@pytest.mark.parametrize(("two_us", "beside"), [(50.0, True), (79.9, False), (95.0, False)])
def test_two_streams_are_taken_where_they_are_ahead_by_the_margin(two_us: float, beside: bool) -> None:
    picked = pick(OFFERED, sampler(0.02))
    assert (picked.one_stream_us, picked.beside) == (None, False)
    assert "library_two_streams_us" not in {metric.tag for metric in picked.metrics(["up", "down"])}
    both = pick_streams(picked, ([80.0] * 9, [two_us] * 9))
    assert (both.choices, both.beside) == (picked.choices, beside)
    tags = {metric.tag: metric.value for metric in both.metrics(["up", "down"])}
    assert (tags["library_one_stream_us"], tags["library_two_streams_us"]) == (80.0, two_us)
