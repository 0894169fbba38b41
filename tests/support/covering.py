"""Pairwise covering samples: for any two axes, every pair of values in the population occurs in the sample."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def pairs_of(values: Sequence[Hashable]) -> set[tuple[int, int, Hashable, Hashable]]:
    """The value pairs of one point."""
    return {(i, j, values[i], values[j]) for i, j in combinations(range(len(values)), 2)}


def covering_sample(population: Sequence[T], axes: Callable[[T], Sequence[Hashable]]) -> list[T]:
    """A small subset with every pair of axis values of the population, chosen greedily in a fixed order."""
    pairs = [pairs_of(axes(item)) for item in population]
    missing = set().union(*pairs)
    sample: list[T] = []
    # A point's gain only decreases, so a stale bound that is not above the best current one can be skipped.
    bounds = [len(own) for own in pairs]
    while missing:
        best, best_gain = -1, 0
        for i in sorted(range(len(population)), key=lambda i: -bounds[i]):
            if bounds[i] <= best_gain:
                break
            bounds[i] = len(pairs[i] & missing)
            if bounds[i] > best_gain:
                best, best_gain = i, bounds[i]
        sample.append(population[best])
        missing -= pairs[best]
    return sample


def covering_values(population: Sequence[T], values: Callable[[T], set[Hashable]]) -> list[T]:
    """A small subset with every value of the population, chosen greedily in a fixed order."""
    own = [values(item) for item in population]
    missing = set().union(*own)
    sample: list[T] = []
    while missing:
        best = max(range(len(own)), key=lambda i: len(own[i] & missing))
        sample.append(population[best])
        missing -= own[best]
    return sample
