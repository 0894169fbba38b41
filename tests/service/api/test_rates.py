"""Rate limits: the number of requests per window, with a clock that the test sets."""

from __future__ import annotations

import asyncio
import time

from tuner.api.http.rates import WINDOW_S, Rates, SlidingWindow
from tuner.core.access.caller import Role, Token

TOKEN = Token(id="tok-1", owner="a", role=Role.READ, note="", created_at=0.0, expires_at=None, revoked_at=None)


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
    assert [rates.guessed("10.0.0.1") for _ in range(30)] == [True] * 20 + [False] * 10
    assert rates.guessed("10.0.0.2")


def test_a_right_token_is_let_in_whatever_else_its_address_sends() -> None:
    """If an address has sent too many wrong tokens, its tokens are looked up one at a time."""
    rates, at_once, most = Rates(0), 0, 0

    def find(secret: str) -> Token | None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.005)
        at_once -= 1
        return TOKEN if secret == "right" else None

    async def ask() -> list[Token | None]:
        words = ["wrong"] * 20 + ["right"]
        return await asyncio.gather(*(rates.token_for("10.0.0.1", find, word) for word in words))

    assert [rates.guessed("10.0.0.1") for _ in range(21)][-1] is False
    assert asyncio.run(ask()) == [None] * 20 + [TOKEN]
    assert most == 1
