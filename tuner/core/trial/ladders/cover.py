"""Covers what is needed with the fewest sets, and proves the minimum.

Sets are integers whose bits are their elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Maximum steps of the exact search; ladders of a few hundred rows need far fewer. Beyond that, only the bound is
#: proven.
MAX_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Which sets to take."""

    #: Indices of the sets, ascending.
    chosen: tuple[int, ...]
    #: A proven lower bound: no cover has fewer sets.
    least: int

    @property
    def is_least(self) -> bool:
        """Whether it is proven that no cover has fewer sets."""
        return len(self.chosen) == self.least


class _Search:
    """A depth-first search that branches on the element that the fewest sets contain."""

    def __init__(self, sets: Sequence[int], max_steps: int) -> None:
        self.sets = sets
        self.best: tuple[int, ...] = ()
        self.num_left = max_steps

    def holders(self, needed: int) -> dict[int, list[int]]:
        """The sets that contain each needed element, by its bit."""
        bits = [1 << i for i in range(needed.bit_length()) if needed >> i & 1]
        return {bit: [i for i, one in enumerate(self.sets) if one & bit] for bit in bits}

    def bound(self, needed: int, holders: dict[int, list[int]]) -> int:
        """Lower bound of further sets: a number of elements of which no set contains two, so each needs its own set."""
        count, blocked = 0, 0
        for bit in sorted(holders, key=lambda bit: len(holders[bit])):
            if bit & needed and not bit & blocked:
                count += 1
                for i in holders[bit]:
                    blocked |= self.sets[i]
        return count

    def visit(self, needed: int, taken: tuple[int, ...], holders: dict[int, list[int]]) -> None:
        """Looks for a cover with fewer sets than the best so far."""
        if not needed:
            self.best = taken if len(taken) < len(self.best) else self.best
            return
        self.num_left -= 1
        if self.num_left <= 0 or len(taken) + self.bound(needed, holders) >= len(self.best):
            return
        bit = min((bit for bit in holders if bit & needed), key=lambda bit: len(holders[bit]))
        for i in sorted(holders[bit], key=lambda i: (-(self.sets[i] & needed).bit_count(), i)):
            self.visit(needed & ~self.sets[i], (*taken, i), holders)


def least_cover(sets: Sequence[int], needed: int, *, max_steps: int = MAX_STEPS) -> Cover:
    """The fewest of `sets` that together contain all bits of `needed`. Among equal covers, one with early sets is used.

    Exact by branch and bound. If that takes more than `max_steps` steps, returns the best cover so far, with a `least`
    that is proven.

    Raises:
        ValueError: some of `needed` is in no set.
    """
    search = _Search(sets, max_steps)
    holders = search.holders(needed)
    if any(not of_it for of_it in holders.values()):
        raise ValueError("no set contains what is needed")
    search.best = _greedy(sets, needed)
    least = search.bound(needed, holders)
    search.visit(needed, (), holders)
    if search.num_left > 0:
        least = len(search.best)
    return Cover(chosen=tuple(sorted(search.best)), least=least)


def _greedy(sets: Sequence[int], needed: int) -> tuple[int, ...]:
    """A cover that always takes the set with the most elements not covered yet."""
    taken: tuple[int, ...] = ()
    while needed:
        best = max(range(len(sets)), key=lambda i: ((sets[i] & needed).bit_count(), -i))
        taken, needed = (*taken, best), needed & ~sets[best]
    return taken
