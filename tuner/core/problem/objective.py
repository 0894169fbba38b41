"""How a time was taken: a figure is comparable only with one of the same procedure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CacheState(StrEnum):
    """What the L2 holds when a sample starts."""

    #: Weights rotate over at least three times the L2, so they come from DRAM.
    COLD = "cold"
    #: The same buffers again and again.
    WARM = "warm"


class Regime(StrEnum):
    """The card's power state while it is timed."""

    #: After an idle pause, clocks high.
    BURST = "burst"
    #: After at least 80 ms of load, the card at its power limit.
    SUSTAINED = "sustained"


class LaunchStyle(StrEnum):
    """Whether a run overlaps with its neighbours in the chain."""

    #: Each launch begins when the one before it has ended.
    PLAIN = "plain"
    #: Programmatic dependent launch: it begins while the one before it ends.
    PDL = "pdl"


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """What a time is the time of."""

    l2: CacheState
    regime: Regime
    launch: LaunchStyle
    #: Runs of one sample, whose time is divided by it.
    chain_length: int
