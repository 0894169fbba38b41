"""How often anybody asks: counted in memory, of this process."""

from __future__ import annotations

import time
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread

from tuner.core.access.caller import Token

#: Rates are counted over so many seconds, so that a burst passes.
WINDOW_S = 10
#: Wrong tokens that an address may send in that time; each costs a query.
_MAX_WRONG = 20
#: Names that are counted in a window before it begins again, at most: an address is easily changed.
_MAX_NAMES = 100_000


class SlidingWindow:
    """At most this many hits a name in any `WINDOW_S`, as far as two counts can tell: that of the window which runs,
    and the share of the one before that is not over. The event loop alone uses it, so it has no lock."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._number = 0
        self._now: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def has_room(self, name: str) -> bool:
        """Whether a hit would still be within what is allowed."""
        now_s = self._clock()
        number = int(now_s // WINDOW_S)
        if number != self._number or len(self._now) >= _MAX_NAMES:
            self._before = self._now if number <= self._number + 1 else {}
            self._number, self._now = number, {}
        left = number + 1 - now_s / WINDOW_S
        return self._before.get(name, 0) * left + self._now.get(name, 0) + 1 <= self._most

    def hit(self, name: str) -> bool:
        """Counts a hit, unless that is one too many; whether it was counted."""
        if not self.has_room(name):
            return False
        self._now[name] = self._now.get(name, 0) + 1
        return True


class Rates:
    """What a token, or an address, may ask for."""

    def __init__(self, per_s: float) -> None:
        """`per_s` is how many requests a token, or an address without one, may send in the mean; 0 for any."""
        self._asked = SlidingWindow(max(1, round(per_s * WINDOW_S))) if per_s > 0 else None
        self._wrong = SlidingWindow(_MAX_WRONG)
        self._doubtful = CapacityLimiter(1)

    def take(self, who: str) -> bool:
        """Counts a request; whether it may be answered."""
        return self._asked is None or self._asked.hit(who)

    async def token_for(self, address: str, find: Callable[[str], Token | None], secret: str) -> Token | None:
        """The token of a secret. Many may share an address, so a right one is let in, whatever the others sent. Those
        of an address with too many wrong ones are looked up one at a time, which costs the others nothing."""
        limiter = None if self._wrong.has_room(address) else self._doubtful
        return await to_thread.run_sync(find, secret, limiter=limiter)

    def guessed(self, address: str) -> bool:
        """Counts a wrong token; whether that was not one too many. Nobody guesses 256 random bits: the limit is for
        what a wrong one costs."""
        return self._wrong.hit(address)
