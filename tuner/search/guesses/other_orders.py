"""Other orders of the best fused schedule, which are tried after the first guesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import AnySpace
from tuner.core.space.space import Space
from tuner.search.guesses.seeds import NUM_SEEDS, policy_guesses, waiting_guesses
from tuner.search.model.kind_search import KindSearch


class OtherOrders:
    """The orders of one search."""

    def __init__(self, space: AnySpace, search: KindSearch) -> None:
        """`search` is that of the plan kind that tries the first guesses."""
        self._space = space
        self._search = search
        self._of_guesses: tuple[Schedule, ...] | None = None

    def guesses(self) -> Iterator[Schedule]:
        """The best schedule so far with a first wave, then the variants of the best first guess."""
        yield from self._with_first_wave()
        yield from self._orders_of_guesses()

    def _with_first_wave(self) -> list[Schedule]:
        """The best schedule so far with an assigned first wave and tickets for the rest, if legal. In jobs on cards, no
        other change was an improvement as often (docs/findings/README.md)."""
        best = self._search.best()[:1]
        waved = (one.but(ordering=replace(one.ordering, assignment=Assignment.FIRST_WAVE)) for one in best)
        return [one for one in waved if one.tiling.tiles and self._space.is_legal(one)]

    def _orders_of_guesses(self) -> tuple[Schedule, ...]:
        """The best first guess with different ways to wait, and with the order of each policy; empty until all first
        guesses have been observed. After that, the best first guess no longer changes, so a restarted search finds the
        same one."""
        if not isinstance(self._space, Space):
            return ()
        if self._of_guesses is None:
            first = list(self._search.tried.items())[:NUM_SEEDS]
            if len(first) < NUM_SEEDS:
                return ()
            measured = [(value, schedule) for schedule, value in first if value is not None]
            best = min(measured, key=lambda item: item[0])[1] if measured else None
            others = (*waiting_guesses(self._space, best), *policy_guesses(self._space, best)) if best else ()
            self._of_guesses = tuple(dict.fromkeys(others))
        return self._of_guesses
