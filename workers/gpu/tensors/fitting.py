"""Whether a problem's tensors fit on a card, computed from their sizes before anything is allocated."""

from __future__ import annotations

#: Share of the free memory that slots use, once room for the checks' tensors is subtracted. References and kernels use
#: the rest.
_SHARE_OF_SLOTS = 0.6
#: Number of checked launches, each with its own inputs.
NUM_CHECKS = 4

#: Minimum and maximum launches of one timed chain. If more than the maximum were needed to evict a slot before it is
#: used again, a flush before the chain makes it cold.
MIN_CHAIN, MAX_CHAIN = 8, 128


class DoesNotFit(Exception):
    """The card's free memory cannot hold one copy of the problem."""


def launches_that_evict(l2_bytes: int, slot_bytes: int) -> int:
    """Number of launches that move three times the L2, if each moves `slot_bytes` of its own; some move nothing."""
    return -(-3 * l2_bytes // max(1, slot_bytes))


def launches_of_chain(l2_bytes: int, slot_bytes: int) -> int:
    """Number of launches of a cold chain: enough to evict a slot before the next chain, or the maximum."""
    return max(MIN_CHAIN, min(MAX_CHAIN, launches_that_evict(l2_bytes, slot_bytes)))


def slots_that_fit(free_bytes: int, copy_bytes: int, check_bytes: int) -> int:
    """Number of copies of `copy_bytes` each that fit in addition to the checks' tensors.

    Raises:
        DoesNotFit: not even one fits.
    """
    fits = int(_SHARE_OF_SLOTS * (free_bytes - check_bytes)) // copy_bytes
    if fits < 1:
        copy, checks, free = (size / 2**30 for size in (copy_bytes, check_bytes, free_bytes))
        kept = f", the caches of its checks {checks:.1f} GiB" if check_bytes else ""
        raise DoesNotFit(
            f"one copy of the problem needs {copy:.1f} GiB{kept}, and its references need more, but only {free:.1f} "
            "GiB of the card are free"
        )
    return fits
