"""Whether a card is fit to measure on, and whether it is shared: pure judgements of what was read from it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: Below this share of its highest SM clock under a short load a card is not fit.
MIN_CLOCK_SHARE = 0.5
#: Bits of the clocks' event reasons that tell of failing hardware around the card, not of its own power limit.
#: Source: NVML API reference, nvmlClocksEventReasons.
HARDWARE_SLOWDOWNS = {0x08: "a hardware slowdown", 0x40: "a hardware thermal slowdown", 0x80: "an external power brake"}
#: Memory beyond our own that is no longer slack of the driver's, of contexts and of modules, bytes.
MEMORY_SLACK_BYTES = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class CardCheck:
    """What a fresh process found at the card."""

    #: Whether the known-good kernel gave the right numbers.
    is_right: bool
    #: SM clock under a short load, MHz.
    clock_mhz: float
    #: The card's highest, MHz; 0 where the driver does not say.
    max_clock_mhz: int
    #: The clocks' event reasons under that load; 0 where the driver does not say.
    clock_event_bits: int


def trouble(check: CardCheck) -> str:
    """Why the card is not fit to measure on; empty where it is."""
    if not check.is_right:
        return "the known-good kernel computed wrong results"
    events = [name for bit, name in HARDWARE_SLOWDOWNS.items() if check.clock_event_bits & bit]
    if events:
        return f"the driver reports {' and '.join(events)}"
    if check.clock_mhz < MIN_CLOCK_SHARE * check.max_clock_mhz:
        return f"its SMs run at {check.clock_mhz:.0f} of {check.max_clock_mhz} MHz under load"
    return ""


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """What the driver said of the card's other users, before this process had a context and after."""

    own_pid: int
    pids_before: frozenset[int]
    pids_after: frozenset[int]
    #: Memory in use by anyone, bytes.
    used_before_bytes: int
    used_after_bytes: int

    @property
    def own_pids(self) -> frozenset[int]:
        """How the driver calls this process: in a container another number may stand for it."""
        return (self.pids_after - self.pids_before) | {self.own_pid}


def num_foreign(at_start: Neighbourhood, pids: Collection[int], used_bytes: int, own_growth_bytes: int) -> int:
    """Foreign compute processes on the card now.

    The driver lists none to a container that may not see the others. Then memory is the only sign: what is used beyond
    this process's context and its growth since, or was used before it came, counts as one process.
    """
    if pids:
        return len(set(pids) - at_start.own_pids)
    own_bytes = at_start.used_after_bytes - at_start.used_before_bytes + own_growth_bytes
    return int(used_bytes - own_bytes > MEMORY_SLACK_BYTES)
