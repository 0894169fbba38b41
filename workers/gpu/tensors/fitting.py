"""Whether a problem's tensors fit on a card, by their sizes: asked before anything is allocated."""

from __future__ import annotations

#: Of the memory that is free beside what checks keep, the part that slots take. References and kernels take the rest.
_SHARE_OF_SLOTS = 0.6
#: Checked launches, each with inputs of its own.
NUM_CHECKS = 4


class DoesNotFit(Exception):
    """The card's free memory does not hold one copy of the problem."""


def slots_that_fit(free_bytes: int, copy_bytes: int, check_bytes: int) -> int:
    """How many copies of `copy_bytes` each fit beside what checks keep.

    Raises:
        DoesNotFit: not one.
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
