"""What only a launch sees: how many pages its caches have, and which length or page it could not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .driver import Driver
from .native import RuntimeFailure

#: What a launch leaves of what it refused: four words, of which the first says what.
REFUSED_BYTES, _REFUSALS = 16, {1: "length", 2: "page"}


def pages_of(caches: Sequence[str], num_pages: Mapping[str, int]) -> int:
    """That all of these caches have.

    Raises:
        RuntimeFailure: they have not as many.
    """
    found = {num_pages[name] for name in caches}
    if len(found) > 1:
        raise RuntimeFailure(-1, f"{' and '.join(caches)} have {sorted(found)} pages: give both as many")
    return found.pop()


def refusal(cuda: Driver, at: int) -> str:
    """What a launch left there of what it could not use, as a sentence; empty for nothing."""
    kind, sequence, value, end = (cuda.word(at + 4 * index) for index in range(4))
    signed = value - (1 << 32) if value >> 31 else value
    return f"sequence {sequence} has the {_REFUSALS[kind]} {signed}: use 0 to {end - 1}" if kind else ""
