"""Raw samples: the results of each round of a trial, and why some rounds do not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class DropReason(StrEnum):
    """Why a round does not count; both of its samples are dropped, so that ratios stay paired."""

    #: Burst: a sample ran at less than 95 % of the highest SM clock of its kind in the trial.
    SLOW_CLOCK = "slow_clock"
    #: Sustained: a sample ran at more than 5 % off the median SM clock of its kind in the trial.
    OFF_CLOCK = "off_clock"
    #: Sustained: the driver reported a thermal or hardware slowdown.
    SLOWDOWN = "slowdown"
    #: Sustained: a short sample before the first round, which detects hopeless candidates.
    PREVIEW = "preview"


@dataclass(frozen=True, kw_only=True)
class Round:
    """One interleaved sample of the candidate and of the library."""

    #: Time of one run of the candidate, microseconds.
    time_us: float
    #: The library's time in the same round; None for the library itself.
    library_us: float | None = None
    #: Mean SM clock of each sample, MHz; 0 if unknown.
    clock_mhz: int = 0
    library_clock_mhz: int = 0
    #: None if the round counts.
    dropped: DropReason | None = None


def kept(rounds: Sequence[Round]) -> list[Round]:
    """The rounds that count."""
    return [one for one in rounds if one.dropped is None]


def previews(rounds: Sequence[Round]) -> list[Round]:
    """The short rounds of a preview, before the first round."""
    return [one for one in rounds if one.dropped is DropReason.PREVIEW]


def whole(rounds: Sequence[Round]) -> list[Round]:
    """All rounds except those of a preview."""
    return [one for one in rounds if one.dropped is not DropReason.PREVIEW]


def num_dropped(rounds: Sequence[Round]) -> Counter[DropReason]:
    """Dropped rounds by reason; previews never count."""
    return Counter(one.dropped for one in whole(rounds) if one.dropped is not None)


def speedups(rounds: Sequence[Round]) -> list[float]:
    """The library's time divided by the candidate's, per round; 1 for the library itself."""
    return [1.0 if one.library_us is None else one.library_us / one.time_us for one in rounds]


def speedups_at_one_clock(rounds: Sequence[Round]) -> list[float]:
    """The speed-ups with both samples at one clock: SM cycles of the library's run divided by the candidate's; from
    their times if a clock is unknown.

    Cycles hardly depend on the clock, so this is stable when the card reaches its power limit. It leaves out a
    candidate's gain from a higher clock.
    """
    return [
        speedup * (one.library_clock_mhz / one.clock_mhz if one.clock_mhz and one.library_clock_mhz else 1.0)
        for one, speedup in zip(rounds, speedups(rounds), strict=True)
    ]
