"""Choices for ops that were ranked each by itself, put together without the product of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeVar

Choice = TypeVar("Choice")


def num_each(num_ops: int, most: int) -> int:
    """Choices of each op whose product is at most `most`, and one at least."""
    count = 1
    while num_ops and (count + 1) ** num_ops <= most:
        count += 1
    return count


def best_together(ranked: Sequence[Sequence[Choice]], most: int) -> Iterator[tuple[Choice, ...]]:
    """Of each op's choices, the best first: the product of as many as make `most` at most; where that is one of each,
    the best of all, and then with one op's next one. None twice."""
    each = num_each(len(ranked), most)
    if each > 1:
        yield from product(*(choices[:each] for choices in ranked))
        return
    best = tuple(choices[0] for choices in ranked)
    yield best
    for op, choices in enumerate(ranked):
        yield from ((*best[:op], choice, *best[op + 1 :]) for choice in choices[1:2])
