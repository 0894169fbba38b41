"""What a budget or a patience would have found, read off a longer search."""

from __future__ import annotations

from benchmarks.cpu.patience import Step, figures, replay

NONE = Step(speedup=None, true_us=None)
STEPS = [
    NONE,  # the library
    Step(speedup=1.0, true_us=10.0),
    Step(speedup=1.2, true_us=8.0),
    NONE,
    Step(speedup=1.203, true_us=8.1),  # measured faster by luck, and by too little to be progress
    NONE,
    Step(speedup=1.5, true_us=6.0),
]


def test_a_shorter_budget_finds_what_the_longer_one_had_found_by_then() -> None:
    assert replay(STEPS, 7, None) == (7, 6.0)
    assert replay(STEPS, 3, None) == (3, 8.0)
    assert replay(STEPS, 5, None) == (5, 8.1)
    assert replay(STEPS, 100, None) == (7, 6.0)


def test_patience_counts_from_the_last_trial_that_was_progress() -> None:
    assert replay(STEPS, 7, 3) == (6, 8.1)
    assert replay(STEPS, 7, 2) == (5, 8.1)
    assert replay(STEPS, 7, 4) == (7, 6.0)


def test_a_row_has_the_mean_of_the_trials_and_the_share_of_the_longest_search() -> None:
    assert figures([STEPS, STEPS[:3]], 7, 3) == {
        "budget": 7,
        "patience": 3,
        "mean_trials": 4.5,
        "median_share": round((6.0 / 8.1 + 1) / 2, 4),
        "worst_share": round(6.0 / 8.1, 4),
    }
