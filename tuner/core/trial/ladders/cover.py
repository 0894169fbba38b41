"""The least number of sets that cover what is needed, with a proof of how few there can be.

Sets are integers whose bits are the things that they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Steps of the exact search; ladders of a few hundred rows need far fewer. Beyond it the bound is what is proven.
MAX_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Which sets to take."""

    #: Indices of the sets, ascending.
    chosen: tuple[int, ...]
    #: No cover has fewer sets.
    least: int

    @property
    def is_least(self) -> bool:
        """Whether it is proven that none has fewer."""
        return len(self.chosen) == self.least


class _Search:
    """Depth first, by the thing that the fewest sets hold."""

    def __init__(self, sets: Sequence[int], max_steps: int) -> None:
        self.sets = sets
        self.best: tuple[int, ...] = ()
        self.num_left = max_steps

    def holders(self, needed: int) -> dict[int, list[int]]:
        """Which sets hold each thing that is needed, by its bit."""
        bits = [1 << i for i in range(needed.bit_length()) if needed >> i & 1]
        return {bit: [i for i, one in enumerate(self.sets) if one & bit] for bit in bits}

    def bound(self, needed: int, holders: dict[int, list[int]]) -> int:
        """This many things of which no set holds two, each of which takes a set of its own."""
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
    """The fewest of `sets` that together hold all bits of `needed`. Of equal covers one is taken whose sets come early.

    Exact by branch and bound. Where that takes more than `max_steps` steps, the best cover found is given, and `least`
    is what is proven.

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
    """Always the set that holds the most of what is left."""
    taken: tuple[int, ...] = ()
    while needed:
        best = max(range(len(sets)), key=lambda i: ((sets[i] & needed).bit_count(), -i))
        taken, needed = (*taken, best), needed & ~sets[best]
    return taken
