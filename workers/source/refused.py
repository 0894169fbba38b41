"""Lengths or pages that a launch could not use, as recorded by its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Number of words in the record of what a launch refused and of its first case, in the order of `Refusal` in the device
#: code.
REFUSED_WORDS = 4
_REFUSALS = {1: "length", 2: "page"}


@dataclass(frozen=True, kw_only=True)
class RefusedLaunch:
    """The first invalid value that a launch found; it read nothing there, and its result is wrong."""

    #: `length` or `page`.
    what: str
    sequence: int
    value: int
    #: The first value that is too large.
    end: int

    def __str__(self) -> str:
        return f"sequence {self.sequence} has the {self.what} {self.value}: use 0 to {self.end - 1}"


def refused_launch(words: Sequence[int]) -> RefusedLaunch | None:
    """The meaning of `REFUSED_WORDS` words, and any after them; None if everything was valid."""
    kind, sequence, value, end = (signed(word) for word in words[:REFUSED_WORDS])
    return None if kind == 0 else RefusedLaunch(what=_REFUSALS[kind], sequence=sequence, value=value, end=end)


def signed(word: int) -> int:
    """A word of 32 bits as an int32."""
    return (int(word) + (1 << 31)) % (1 << 32) - (1 << 31)
