"""What a launch was told and could not use, as its kernel has written it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Words that tell what a launch has refused, and what the first of them names, by `Refusal` in the device code.
REFUSED_WORDS = 4
_REFUSALS = {1: "length", 2: "page"}


@dataclass(frozen=True, kw_only=True)
class RefusedLaunch:
    """What a launch found wrong first: it read nothing there, and its result is not right."""

    #: `length` or `page`.
    what: str
    sequence: int
    value: int
    #: The first value that is too large.
    end: int

    def __str__(self) -> str:
        return f"sequence {self.sequence} has the {self.what} {self.value}: use 0 to {self.end - 1}"


def refused_launch(words: Sequence[int]) -> RefusedLaunch | None:
    """What `REFUSED_WORDS` words say, and any behind them; None where all was right."""
    kind, sequence, value, end = (signed(word) for word in words[:REFUSED_WORDS])
    return None if kind == 0 else RefusedLaunch(what=_REFUSALS[kind], sequence=sequence, value=value, end=end)


def signed(word: int) -> int:
    """A word of 32 bits as an int32."""
    return (int(word) + (1 << 31)) % (1 << 32) - (1 << 31)
