"""Request rates, counted in the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread

from tuner.core.access.caller import Token

#: The period over which a rate is measured, seconds; long enough to allow bursts.
WINDOW_S = 10
#: Number of wrong tokens that an address may send in this period; each costs a query.
_MAX_WRONG = 20
#: Maximum number of names per window, since a client can easily change its address; beyond it, counting restarts.
_MAX_NAMES = 100_000


class SlidingWindow:
    """Allows at most `most` hits per name in any period of `WINDOW_S`, estimated from two counts: the current window's,
    and the remaining share of the previous one. Only the event loop uses it, so it needs no lock."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._number = 0
        self._now: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def has_room(self, name: str) -> bool:
        """Whether another hit is allowed."""
        now_s = self._clock()
        number = int(now_s // WINDOW_S)
        if number != self._number or len(self._now) >= _MAX_NAMES:
            self._before = self._now if number <= self._number + 1 else {}
            self._number, self._now = number, {}
        left = number + 1 - now_s / WINDOW_S
        return self._before.get(name, 0) * left + self._now.get(name, 0) + 1 <= self._most

    def hit(self, name: str) -> bool:
        """Counts a hit if it is within the limit; returns whether it was."""
        if not self.has_room(name):
            return False
        self._now[name] = self._now.get(name, 0) + 1
        return True


class Rates:
    """Rate limits of tokens and addresses."""

    def __init__(self, per_s: float) -> None:
        """`per_s` is the average number of requests per second for a token, or for an address that sends no token; 0
        means unlimited."""
        self._asked = SlidingWindow(max(1, round(per_s * WINDOW_S))) if per_s > 0 else None
        self._wrong = SlidingWindow(_MAX_WRONG)
        self._doubtful = CapacityLimiter(1)

    def take(self, who: str) -> bool:
        """Counts a request; returns whether to handle it."""
        return self._asked is None or self._asked.hit(who)

    async def token_for(self, address: str, find: Callable[[str], Token | None], secret: str) -> Token | None:
        """The token that `secret` belongs to. Many clients may share an address, so a correct secret is always
        accepted. After too many wrong ones from an address, its secrets are looked up one at a time, so that other
        clients are not slowed down."""
        limiter = None if self._wrong.has_room(address) else self._doubtful
        return await to_thread.run_sync(find, secret, limiter=limiter)

    def guessed(self, address: str) -> bool:
        """Counts a wrong token; returns whether it was within the limit. 256 random bits cannot be guessed: the limit
        bounds the cost of the look-ups."""
        return self._wrong.hit(address)
