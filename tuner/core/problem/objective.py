"""How a time was measured. Figures are comparable only if they come from the same procedure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.errors import InvalidInput


class CacheState(StrEnum):
    """Content of the L2 when a sample starts."""

    #: Weights rotate over at least three times the L2, so they come from DRAM.
    COLD = "cold"
    #: The same buffers every time.
    WARM = "warm"


class Regime(StrEnum):
    """The card's power state while it is timed."""

    #: After an idle pause, with clocks high.
    BURST = "burst"
    #: After at least 40 ms of load, with the card at its power limit.
    SUSTAINED = "sustained"


class LaunchStyle(StrEnum):
    """Whether a run overlaps with its neighbours in the chain of runs."""

    #: Each launch begins when the one before it has ended.
    PLAIN = "plain"
    #: Programmatic dependent launch: it begins while the one before it ends.
    PDL = "pdl"


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """The conditions of a measured time."""

    l2: CacheState
    regime: Regime
    launch: LaunchStyle
    #: Runs per sample; the sample's time is divided by it.
    chain_length: int


@dataclass(frozen=True, kw_only=True)
class FinalsProcedure:
    """How finals are run and judged. It is stored with the verdict, which is comparable only with verdicts of the same
    procedure."""

    #: Rounds under burst in each of the two processes, the warm one and the fresh one; >= 1.
    num_rounds: int = 20
    #: Relative difference below which two times are a tie, however narrow their interval is; half the interval's width,
    #: on the side of 1, is added. At least 0, below 1.
    min_tie_band: float = 0.01

    def __post_init__(self) -> None:
        if self.num_rounds < 1:
            raise InvalidInput(
                "finals_rounds", f"must be at least 1, got {self.num_rounds}", "20 is a reasonable value"
            )
        if not 0 <= self.min_tie_band < 1:
            problem = f"must be at least 0 and below 1, got {self.min_tie_band:g}"
            raise InvalidInput("tie_band", problem, "0.01 is one percent")

    def rounds_in(self, regime: Regime) -> int:
        """Rounds in each process: a quarter as many under sustained load, where samples are long."""
        return -(-self.num_rounds // 4) if regime is Regime.SUSTAINED else self.num_rounds
