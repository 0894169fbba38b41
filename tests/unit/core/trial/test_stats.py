from __future__ import annotations

import math
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lanes import one_in
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Verdict
from tuner.core.trial.stats import (
    Comparison,
    compare,
    decide,
    median,
    median_upper_bound,
    paired_ratios,
    rank_correlation,
    ranks,
    ratio_ci95,
    relative_spread,
    selection_regret,
    tie_band,
)

#: The minimum tie band of these tests, which need not be the default.
BAND = 0.01
judged = partial(decide, min_tie_band=BAND)
times = st.lists(st.floats(1, 1000), min_size=1, max_size=40)


def noisy(center_us: float, *, noise: float = 0.01, rounds: int = 30, seed: int = 0) -> list[float]:
    rng = random.Random(f"{center_us} {seed}")
    return [center_us * (1 + rng.uniform(-noise, noise)) for _ in range(rounds)]


def test_medians_and_spreads_of_known_numbers() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert relative_spread([1, 2, 3, 4, 5]) == pytest.approx(1 / 3)
    assert relative_spread([7.0] * 5) == 0
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_ratios_are_taken_round_by_round() -> None:
    assert paired_ratios([2, 9], [1, 3]) == [2, 3]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        paired_ratios([1, 2], [1])


@given(times)
def test_an_interval_lies_within_the_ratios_and_holds_their_median(values: list[float]) -> None:
    low, high = ratio_ci95(values)
    assert min(values) <= low <= median(values) <= high <= max(values)
    assert ratio_ci95(values) == (low, high)


def test_an_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = random.Random(5)
    hits = 0
    for seed in range(200):
        low, high = ratio_ci95([rng.gauss(1.0, 0.05) for _ in range(25)], seed=seed, num_resamples=400)
        hits += low <= 1.0 <= high
    assert 180 <= hits <= 200


def test_the_tie_band_is_the_least_one_and_what_the_interval_reaches_towards_1_beyond_it() -> None:
    assert tie_band(1.0, (1.0, 1.0), 0.01) == 0.01
    assert tie_band(1.05, (1.02, 1.2), 0.01) == pytest.approx(0.04)
    assert tie_band(0.95, (0.8, 0.98), 0.01) == pytest.approx(0.04)
    assert tie_band(1.05, (1.02, 1.2), 0.2) == pytest.approx(0.23)


@pytest.mark.parametrize(("low", "expected"), [(1.0099, False), (1.0101, True)])
def test_who_is_ahead_is_so_with_the_whole_interval_however_it_leans(low: float, expected: bool) -> None:
    """An interval that extends further away from 1 than towards it does not remove a lead."""
    for ci95, speedup in (((low, 1.03), 1.012), ((0.97, 2 - low), 0.988)):
        found = Comparison(speedup=speedup, ci95=ci95, tie_band=tie_band(speedup, ci95, 0.01), agrees=True)
        assert (found.is_faster or found.is_slower) is expected


def times_apart(lead: float, seed: int, noise: float = 0.004) -> tuple[list[float], list[float]]:
    """40 rounds of two kernels, the first of which is ahead by `lead`."""
    rng = random.Random(seed)
    return tuple([us * rng.gauss(1.0, noise) for _ in range(40)] for us in (100.0, 100.0 * (1 + lead)))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("lead", "least", "most"), one_in(2, [(0.01, 0, 12), (0.005, 0, 0), (0.0075, 0, 0), (0.018, 195, 200)])
)
def test_who_is_called_faster_is_ahead_by_the_least_band_as_surely_as_the_interval_says(
    lead: float, least: int, most: int
) -> None:
    """If only the figure had to exceed the band, a true lead of as much would be called a lead every other time."""
    faster = sum(compare(*times_apart(lead, seed), min_tie_band=BAND).is_faster for seed in range(200))
    assert least <= faster <= most
    slower = sum(compare(*reversed(times_apart(lead, seed)), min_tie_band=BAND).is_slower for seed in range(200))
    assert least <= slower <= most


def test_drift_that_hits_both_alike_cancels() -> None:
    drift = [1 + 0.02 * r for r in range(30)]
    a, b = [100 * d for d in drift], [105 * d for d in drift]
    comparison = compare(a, b)
    assert comparison.speedup == pytest.approx(1.05)
    assert comparison.tie_band == FinalsProcedure.min_tie_band
    assert comparison.is_faster
    assert not compare(b, a).is_faster
    assert compare(b, a).is_slower


def test_fused_wins_when_it_is_ahead_by_more_than_the_band() -> None:
    decision = judged({PlanKind.LIBRARY: noisy(120), PlanKind.TWO_LAUNCHES: noisy(110), PlanKind.FUSED: noisy(100)})
    assert (decision.verdict, decision.winner) == (Verdict.FUSED_WINS, PlanKind.FUSED)


def test_do_not_fuse_is_an_answer() -> None:
    decision = judged({PlanKind.LIBRARY: noisy(90), PlanKind.TWO_LAUNCHES: noisy(110), PlanKind.FUSED: noisy(100)})
    assert (decision.verdict, decision.winner) == (Verdict.DO_NOT_FUSE, PlanKind.LIBRARY)


def test_a_tie_goes_to_the_simpler_kind() -> None:
    decision = judged({PlanKind.LIBRARY: noisy(130), PlanKind.TWO_LAUNCHES: noisy(100.3), PlanKind.FUSED: noisy(100)})
    assert (decision.verdict, decision.winner) == (Verdict.TIE, PlanKind.TWO_LAUNCHES)
    noisier = judged({PlanKind.LIBRARY: [80.0, 124.0] * 15, PlanKind.FUSED: noisy(100)})
    assert (noisier.verdict, noisier.winner) == (Verdict.TIE, PlanKind.LIBRARY)
    assert noisier.tie_band > BAND


def test_the_best_fused_kind_wins_and_ties_among_the_fused_go_to_the_plain_one() -> None:
    others = {PlanKind.LIBRARY: noisy(120), PlanKind.TWO_LAUNCHES_PDL: noisy(110)}
    faster = judged({**others, PlanKind.FUSED: noisy(105), PlanKind.FUSED_PDL: noisy(100)})
    assert (faster.verdict, faster.winner) == (Verdict.FUSED_WINS, PlanKind.FUSED_PDL)
    equal = judged({**others, PlanKind.FUSED: noisy(100.3), PlanKind.FUSED_PDL: noisy(100)})
    assert (equal.verdict, equal.winner) == (Verdict.FUSED_WINS, PlanKind.FUSED)


def test_a_fused_kind_that_does_not_beat_the_others_itself_is_no_winner() -> None:
    """A plain launch ties with a programmatic one, and with two launches; the programmatic one is ahead of these."""
    times = {PlanKind.TWO_LAUNCHES: noisy(101.5), PlanKind.FUSED: noisy(100.8), PlanKind.FUSED_PDL: noisy(100)}
    decision = judged(times)
    assert (decision.verdict, decision.winner) == (Verdict.FUSED_WINS, PlanKind.FUSED_PDL)


def test_fused_must_beat_every_other_kind() -> None:
    """It is faster than the steady kind, but the unsteady one may be as fast."""
    unsteady = [95.0, 125.0] * 15
    times = {PlanKind.LIBRARY: unsteady, PlanKind.TWO_LAUNCHES: noisy(105), PlanKind.FUSED: noisy(100)}
    decision = judged(times)
    assert (decision.verdict, decision.winner) == (Verdict.TIE, PlanKind.LIBRARY)


def test_processes_that_disagree_make_a_tie() -> None:
    library = [100.0] * 30
    fused = [90.0] * 20 + [101.0] * 10
    apart = [0] * 20 + [1] * 10
    assert judged({PlanKind.LIBRARY: library, PlanKind.FUSED: fused}).verdict is Verdict.FUSED_WINS
    decision = judged({PlanKind.LIBRARY: library, PlanKind.FUSED: fused}, apart)
    assert (decision.verdict, decision.winner) == (Verdict.TIE, PlanKind.LIBRARY)


def test_a_kind_that_failed_is_absent() -> None:
    alone = judged({PlanKind.LIBRARY: noisy(100)})
    assert (alone.verdict, alone.winner) == (Verdict.DO_NOT_FUSE, PlanKind.LIBRARY)
    assert judged({PlanKind.FUSED: noisy(100)}).verdict is Verdict.FUSED_WINS
    with pytest.raises(ValueError, match="no plan kind"):
        judged({})


@pytest.mark.parametrize(("num", "index"), [(5, 4), (6, 5), (7, 6), (8, 6), (12, 9), (20, 14)])
def test_the_upper_bound_of_a_median_is_the_order_statistic_of_the_sign_test(num: int, index: int) -> None:
    values = [float(i) for i in range(num)]
    random.Random(0).shuffle(values)
    assert median_upper_bound(values) == index


def test_fewer_than_five_values_bound_no_median() -> None:
    assert median_upper_bound([1.0] * 4) == math.inf


def test_the_true_median_is_above_its_upper_bound_at_most_as_often_as_allowed() -> None:
    rng = random.Random(3)
    misses = sum(median_upper_bound([rng.gauss(1.0, 0.1) for _ in range(9)]) < 1.0 for _ in range(2000))
    assert 0 < misses < 0.055 * 2000


def test_equal_values_share_the_mean_of_their_places() -> None:
    assert ranks([5, 1, 5, 9, 5]) == [3, 1, 3, 5, 3]
    assert ranks([2, 2]) == [1.5, 1.5]


def test_a_rank_correlation_of_known_numbers_with_and_without_ties() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 400]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [9, 7, 5, 3]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=30))
def test_a_rank_correlation_knows_order_alone(pairs: list[tuple[int, int]]) -> None:
    one, other = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    found = rank_correlation(one, other)
    if found is None:
        assert len(set(one)) == 1 or len(set(other)) == 1
        return
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    assert rank_correlation(other, one) == pytest.approx(found)
    assert rank_correlation([math.exp(value) for value in one], other) == pytest.approx(found)
    assert rank_correlation([-value for value in one], other) == pytest.approx(-found)


def test_series_of_other_lengths_have_no_rank_correlation() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        rank_correlation([1, 2, 3], [1, 2])


def test_the_regret_of_a_choice_is_how_far_its_best_is_above_the_best_of_all() -> None:
    predicted, actual = [1.0, 2.0, 3.0, 4.0], [13.0, 12.0, 10.0, 11.0]
    assert [selection_regret(predicted, actual, count) for count in (1, 2, 3, 4)] == pytest.approx([0.3, 0.2, 0, 0])
    assert selection_regret([7.0, 7.0], [2.0, 1.0], 1) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="nothing"):
        selection_regret([], [], 3)
