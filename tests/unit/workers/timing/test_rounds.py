"""From samples to a trial's figures: pairs are dropped as pairs, and a hopeless candidate ends early."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.trial.samples import DropReason, Round
from tuner.workers.timing.clocks import Sample
from tuner.workers.timing.rounds import (
    MIN_KEPT,
    Ending,
    are_enough_together,
    counting_together,
    summary,
    to_rounds,
)
from tuner.workers.timing.stop_rules import HopelessRule, stop_rule

PROCEDURE = Procedure(l2=CacheState.COLD, regime=Regime.BURST, launch=LaunchStyle.PLAIN, chain_length=8)


def samples(*times_us: float, clock_mhz: int = 1980) -> list[Sample]:
    return [Sample(time_us=time_us, clock_mhz=clock_mhz) for time_us in times_us]


def with_slow(times_us: list[float], slow: set[int]) -> list[Sample]:
    """Samples, some of which ran at a low clock and therefore took longer."""
    return [
        Sample(time_us=t * (2 if i in slow else 1), clock_mhz=990 if i in slow else 1980)
        for i, t in enumerate(times_us)
    ]


def test_a_round_with_a_slow_sample_goes_with_both_of_its_samples() -> None:
    rounds = to_rounds(with_slow([10.0] * 8, {1, 2}), with_slow([20.0] * 8, {5}), Regime.BURST)
    assert [i for i, one in enumerate(rounds) if one.dropped is DropReason.SLOW_CLOCK] == [1, 2, 5]
    measured = summary(rounds, PROCEDURE, truncated=False)
    assert (measured.time_us, measured.library_us, measured.speedup, measured.spread) == (10, 20, 2, 0)
    assert measured.samples_us == (10.0,) * 5
    assert len(measured.rounds) == 8
    figures = {metric.tag: metric.value for metric in measured.metrics}
    assert figures == {"num_rounds": 8, "dropped_slow_clock": 3, "sm_clock": 1980, "library_sm_clock": 1980}
    assert measured.remark == ""


def test_a_trial_says_when_more_than_half_of_its_rounds_were_dropped() -> None:
    rounds = to_rounds(with_slow([10.0] * 9, {1, 2, 3, 4, 5}), samples(*[20.0] * 9), Regime.BURST)
    measured = summary(rounds, PROCEDURE, truncated=False)
    assert measured.remark == "5 of 9 rounds were dropped (slow_clock 5)"
    assert measured.time_us == 10


def test_where_too_few_rounds_count_all_are_taken_and_the_trial_says_so() -> None:
    slow = set(range(1, 8))
    assert 8 - len(slow) < MIN_KEPT
    measured = summary(to_rounds(with_slow([10.0] * 8, slow), None, Regime.BURST), PROCEDURE, truncated=False)
    assert measured.time_us == 20
    assert "7 of 8 rounds were dropped (slow_clock 7); its figures are those of all rounds" in measured.remark


def taken_together(slow: set[int], num_rounds: int) -> list[list[Sample]]:
    """The rounds of finals of two candidates; in those listed in `slow`, the second one's clock is low."""
    tracks: list[list[Sample]] = [[], []]
    while not are_enough_together(tracks, num_rounds, Regime.BURST):
        number = len(tracks[0])
        tracks[0] += samples(10.0)
        tracks[1] += samples(20.0, clock_mhz=990 if number in slow else 1980)
    return tracks


@pytest.mark.parametrize(
    ("slow", "num_rounds", "num_taken", "counted"),
    [
        (set(), 5, 5, [0, 1, 2, 3, 4]),
        ({1}, 5, 6, [0, 2, 3, 4, 5]),
        ({1, 3}, 5, 7, [0, 2, 4, 5, 6]),
        ({1, 3, 4}, 5, 7, [0, 2, 5, 6]),
        ({2}, 20, 21, [0, 1, *range(3, 21)]),
    ],
)
def test_finals_take_further_rounds_in_place_of_those_that_do_not_count(
    slow: set[int], num_rounds: int, num_taken: int, counted: list[int]
) -> None:
    tracks = taken_together(slow, num_rounds)
    assert [len(track) for track in tracks] == [num_taken] * 2
    assert counting_together(tracks, num_rounds, Regime.BURST) == counted


def test_where_too_few_rounds_of_finals_count_all_do() -> None:
    tracks = taken_together({1, 2, 3, 4, 5, 6}, 5)
    assert counting_together(tracks, 5, Regime.BURST) == [0, 1, 2, 3, 4, 5, 6]


def test_the_library_is_its_own_baseline() -> None:
    measured = summary(to_rounds(samples(10, 12, 11), None, Regime.BURST), PROCEDURE, truncated=False)
    assert (measured.time_us, measured.library_us, measured.speedup) == (11, 11, 1)
    assert all(one.library_us is None for one in measured.rounds)


def pairs(num: int, speedup: float, noise: float = 0.01, seed: int = 0) -> tuple[Round, ...]:
    draw = random.Random(seed)
    return tuple(Round(time_us=10.0, library_us=10 * speedup * draw.uniform(1 - noise, 1 + noise)) for _ in range(num))


def sustained(incumbent_speedup: float | None) -> Ending:
    return Ending(stop=stop_rule(Regime.SUSTAINED), hopeless=HopelessRule(), incumbent_speedup=incumbent_speedup)


def ending(incumbent_speedup: float | None) -> Ending:
    return Ending(stop=stop_rule(Regime.BURST), hopeless=HopelessRule(), incumbent_speedup=incumbent_speedup)


@pytest.mark.parametrize(
    ("speedup", "incumbent", "expected"), [(0.7, 1.0, True), (0.9, 1.0, False), (1.4, 2.0, True), (0.1, None, False)]
)
def test_what_is_certainly_below_four_fifths_of_the_incumbent_ends_after_five_rounds(
    speedup: float, incumbent: float | None, expected: bool
) -> None:
    assert not ending(incumbent).is_truncation(pairs(4, speedup))
    assert ending(incumbent).is_truncation(pairs(5, speedup)) is expected


def test_one_round_that_is_good_enough_keeps_a_candidate_in_for_now() -> None:
    assert not ending(1.0).is_truncation((*pairs(4, 0.5), *pairs(1, 0.9)))
    assert ending(1.0).is_truncation((*pairs(7, 0.5), *pairs(1, 0.9)))


def test_what_is_certainly_behind_the_incumbent_has_enough_rounds_earlier() -> None:
    assert not ending(1.0).is_enough(pairs(4, 0.95), 0.0)
    assert ending(1.0).is_enough(pairs(5, 0.95), 0.0)
    assert not ending(1.0).is_enough((*pairs(4, 0.95), *pairs(1, 0.99)), 0.0), "it may be near after all"
    assert not ending(None).is_enough(pairs(5, 0.95), 0.0)


def test_what_is_near_the_incumbent_goes_on_until_its_figure_is_known() -> None:
    assert not ending(1.0).is_enough(pairs(7, 0.99, noise=0.001), 0.0)
    assert ending(1.0).is_enough(pairs(8, 0.99, noise=0.001), 0.0)
    assert not ending(1.0).is_enough(pairs(8, 0.99, noise=0.02), 0.0)


def test_what_is_hopeless_is_truncated_and_not_enough() -> None:
    assert not ending(1.0).is_enough(pairs(5, 0.7), 0.0)


def test_a_candidate_near_the_incumbent_is_hardly_ever_taken_for_one_behind() -> None:
    """A true ratio of 0.985 with noise of 2 %: one in 2^5 would be below by chance if the median were 0.98."""
    hits = sum(ending(1.0).is_enough(pairs(5, 0.985, noise=0.02, seed=seed), 0.0) for seed in range(2000))
    assert hits < 0.031 * 2000


def test_dropped_rounds_condemn_nobody() -> None:
    dropped = tuple(Round(time_us=10.0, library_us=1.0, dropped=DropReason.SLOW_CLOCK) for _ in range(10))
    assert not ending(1.0).is_truncation(dropped)
    assert not ending(1.0).is_enough(dropped, 0.0)
    assert ending(1.0).is_enough(dropped * 10, 0.0)


def slowed(rounds: tuple[Round, ...], num_slowed: int) -> tuple[Round, ...]:
    """Samples, the first of which were slowed down by the driver."""
    return (*(replace(one, dropped=DropReason.SLOWDOWN) for one in rounds[:num_slowed]), *rounds[num_slowed:])


def test_on_a_card_that_stays_slowed_down_rounds_end_as_on_any_other() -> None:
    for num_slowed, is_enough in ((2, False), (3, True), (5, True)):
        assert sustained(1.0).is_enough(slowed(pairs(5, 0.95), num_slowed), 0.0) is is_enough
        assert sustained(1.0).is_truncation(slowed(pairs(5, 0.7), num_slowed)) is is_enough
    assert not sustained(1.0).is_enough(slowed(pairs(4, 0.95), 4), 0.0)
    assert not sustained(1.0).is_enough(slowed(pairs(5, 0.99, noise=0.05), 5), 0.0), "it may be near after all"


def test_a_candidate_as_good_as_the_incumbent_is_hardly_ever_truncated() -> None:
    """Noise of 15 %, five rounds, a true ratio of 0.85: one in 2^5 would be below by chance if the median were 0.8."""
    hits = sum(ending(1.0).is_truncation(pairs(5, 0.85, noise=0.15, seed=seed)) for seed in range(2000))
    assert hits < 0.031 * 2000
