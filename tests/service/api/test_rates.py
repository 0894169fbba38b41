"""Rates: how many requests pass in any window, by a clock that the test turns."""

from __future__ import annotations

from tuner.api.rates import WINDOW_S, Rates, SlidingWindow


def test_as_many_as_are_allowed_pass_in_a_window_and_names_do_not_share_them() -> None:
    window = SlidingWindow(5, lambda: 1000.0)
    assert [window.hit("one") for _ in range(7)] == [True] * 5 + [False] * 2
    assert window.hit("other")


def test_the_window_before_counts_for_as_much_of_it_as_is_not_over() -> None:
    now = [1000.0]
    window = SlidingWindow(10, lambda: now[0])
    assert sum(window.hit("one") for _ in range(20)) == 10
    now[0] += WINDOW_S
    assert not window.hit("one")
    now[0] += WINDOW_S / 2
    assert sum(window.hit("one") for _ in range(20)) == 5
    now[0] += 2 * WINDOW_S
    assert sum(window.hit("one") for _ in range(20)) == 10


def test_what_is_refused_is_not_counted_and_asking_is_no_hit() -> None:
    now = [1000.0]
    window = SlidingWindow(1, lambda: now[0])
    assert [window.has_room("one") for _ in range(3)] == [True] * 3
    assert window.hit("one")
    assert [window.hit("one") for _ in range(50)] == [False] * 50
    now[0] += 2 * WINDOW_S
    assert window.hit("one")


def test_an_address_may_guess_twenty_times_and_any_token_may_ask_where_there_is_no_rate() -> None:
    rates = Rates(0)
    assert all(rates.take("tok-1") for _ in range(1000))
    guesses = []
    while rates.may_guess("10.0.0.1") and len(guesses) < 100:
        rates.guessed("10.0.0.1")
        guesses.append(1)
    assert len(guesses) >= 20
    assert rates.may_guess("10.0.0.2")
