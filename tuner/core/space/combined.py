"""Combines choices of ops that were ranked separately, without forming the full product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from typing import TypeVar

Choice = TypeVar("Choice")


def num_each(num_ops: int, most: int) -> int:
    """Number of choices per op whose product is at most `most`; at least one."""
    count = 1
    while num_ops and (count + 1) ** num_ops <= most:
        count += 1
    return count


def best_together(ranked: Sequence[Sequence[Choice]], most: int) -> Iterator[tuple[Choice, ...]]:
    """All combinations of the ops' best choices, with as many choices per op as give at most `most` combinations. If
    that is one choice per op: all ops' best choices, then the same with one op's second choice. There are no
    duplicates."""
    each = num_each(len(ranked), most)
    if each > 1:
        yield from product(*(choices[:each] for choices in ranked))
        return
    best = tuple(choices[0] for choices in ranked)
    yield best
    for op, choices in enumerate(ranked):
        yield from ((*best[:op], choice, *best[op + 1 :]) for choice in choices[1:2])


def by_turns(groups: Sequence[Sequence[Choice]]) -> list[Choice]:
    """The first of each group, then the second of each, and so on."""
    return [choice for of_rank in zip_longest(*groups) for choice in of_rank if choice is not None]
