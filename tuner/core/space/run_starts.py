"""Cuts of a chain into runs of neighbouring ops, with one launch per run: the axis `run_starts`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

RunStarts = tuple[int, ...]


def run_starts_of(num_ops: int, forced: tuple[int, ...] = ()) -> tuple[RunStarts, ...]:
    """The ops with which later runs begin, in every way that leaves at least two runs and at least one run of two
    ops; those with fewer launches come first. A run begins with each op of `forced`. Without forced starts there are
    2^(n-1) - 2 ways: 6 for four ops, 126 for eight."""
    later = range(1, num_ops)
    ways = (starts for count in range(1, num_ops - 1) for starts in combinations(later, count))
    return tuple(starts for starts in ways if set(forced) <= set(starts))


def near_run_starts(num_ops: int, starts: RunStarts, forced: tuple[int, ...] = ()) -> Iterator[RunStarts]:
    """Cuts with one run more, one run fewer, or one boundary moved by one op; a run begins with each op of `forced`."""
    legal = set(run_starts_of(num_ops, forced))
    toggled = (set(starts) ^ {op} for op in range(1, num_ops))
    moved = (set(starts) - {op} | {op + step} for op in starts for step in (-1, 1))
    found = dict.fromkeys(tuple(sorted(starts)) for starts in (*toggled, *moved))
    yield from (other for other in found if other in legal and other != starts)
