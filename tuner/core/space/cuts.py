"""Cuts of a chain into runs of neighbouring ops, each run a launch: the axis `run_starts`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

Cut = tuple[int, ...]


def cuts_of(num_ops: int) -> tuple[Cut, ...]:
    """The ops with which later runs begin, in every way that leaves two runs at least and a run of two ops at least;
    fewer launches first. There are 2^(n-1) - 2: 6 of four ops, 126 of eight."""
    later = range(1, num_ops)
    return tuple(cut for count in range(1, num_ops - 1) for cut in combinations(later, count))


def near_cuts(num_ops: int, cut: Cut) -> Iterator[Cut]:
    """Those with one run more, one run less, or a boundary that is moved by an op."""
    legal = set(cuts_of(num_ops))
    toggled = (set(cut) ^ {op} for op in range(1, num_ops))
    moved = (set(cut) - {op} | {op + step} for op in cut for step in (-1, 1))
    found = dict.fromkeys(tuple(sorted(starts)) for starts in (*toggled, *moved))
    yield from (other for other in found if other in legal and other != cut)
