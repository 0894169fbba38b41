"""What only a launch sees: how many pages its caches have, and which length or page it could not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .driver import Driver
from .native import WrongOperand

#: What a launch leaves of what it refused: four words, of which the first says what.
REFUSED_BYTES, _REFUSALS = 16, {1: "length", 2: "page"}
#: A kernel counts them in a signed word.
_MOST_PAGES = 2**31 - 1


def pages_of(caches: Sequence[str], num_pages: Mapping[str, int]) -> int:
    """That all of these caches have.

    Raises:
        WrongOperand: they have not as many, or none, or more than the kernel counts.
    """
    found = {num_pages[name] for name in caches}
    if len(found) > 1:
        raise WrongOperand(f"{' and '.join(caches)} have {sorted(found)} pages: give both as many")
    count = found.pop()
    if not 1 <= count <= _MOST_PAGES:
        raise WrongOperand(f"{' and '.join(caches)} have {count} pages: give 1 to {_MOST_PAGES}")
    return count


def refusal(cuda: Driver, at: int) -> str:
    """What a launch left there of what it could not use, as a sentence; empty for nothing."""
    kind, sequence, value, end = (cuda.word(at + 4 * index) for index in range(4))
    signed = value - (1 << 32) if value >> 31 else value
    return f"sequence {sequence} has the {_REFUSALS[kind]} {signed}: use 0 to {end - 1}" if kind else ""
