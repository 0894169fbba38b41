"""Whether a card can be used for measurements, and whether it is shared: pure functions of its readings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: A card whose SM clock under a short load is below this share of the maximum cannot be used.
MIN_CLOCK_SHARE = 0.5
#: Bits of the clocks' event reasons that indicate failing hardware around the card, not its own power limit. Source:
#: NVML API reference, nvmlClocksEventReasons.
HARDWARE_SLOWDOWNS = {0x08: "a hardware slowdown", 0x40: "a hardware thermal slowdown", 0x80: "an external power brake"}
#: Bytes of memory beyond our own that are more than overhead of the driver, contexts and modules.
MEMORY_SLACK_BYTES = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class CardCheck:
    """The findings of a fresh process on the card."""

    #: Whether the known-good kernel computed the correct results.
    is_right: bool
    #: SM clock under a short load, MHz.
    clock_mhz: float
    #: The card's maximum, MHz; 0 if the driver does not report it.
    max_clock_mhz: int
    #: The clocks' event reasons under that load; 0 if the driver does not report them.
    clock_event_bits: int


def trouble(check: CardCheck) -> str:
    """Why the card cannot be used for measurements; empty if it can."""
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
    """What the driver reported on the card's other users, before and after this process had a context."""

    own_pid: int
    pids_before: frozenset[int]
    pids_after: frozenset[int]
    #: Memory in use by any process, bytes.
    used_before_bytes: int
    used_after_bytes: int

    @property
    def own_pids(self) -> frozenset[int]:
        """The driver's numbers for this process, which may have a different number in a container."""
        return (self.pids_after - self.pids_before) | {self.own_pid}


def num_foreign(at_start: Neighbourhood, pids: Collection[int], used_bytes: int, own_growth_bytes: int) -> int:
    """Other compute processes on the card now.

    In a container that may not see other processes, the driver lists none. Then memory is the only indication: memory
    beyond this process's context and its growth since, or used before the process started, counts as one process.
    """
    if pids:
        return len(set(pids) - at_start.own_pids)
    own_bytes = at_start.used_after_bytes - at_start.used_before_bytes + own_growth_bytes
    return int(used_bytes - own_bytes > MEMORY_SLACK_BYTES)
