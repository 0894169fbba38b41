"""Whether a problem's tensors fit on a card, by their sizes: asked before anything is allocated."""

from __future__ import annotations

from tuner.core.problem.workload import Workload

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
            f"one copy of the problem needs {copy:.1f} GiB{kept} and its references more, but {free:.1f} GiB of the "
            "card are free"
        )
    return fits


def cache_bytes(workload: Workload) -> int:
    """Keys and values of all longest contexts of the workload's attention."""
    (op,) = workload.launch_ops
    return op.shape.cache_bytes(op.shape.sequences * op.shape.max_length)


def bytes_of_checks(workload: Workload) -> int:
    """What checks of a workload with an attention keep, at their largest.

    Each has a cache of its own where a product writes to it, else those at edges share one. Beside it stands what the
    library reads: a copy without NaN, and of pages in order two more while they are gathered.
    """
    (op,) = workload.launch_ops
    num_kept = NUM_CHECKS if workload.turned_for is not None else 1
    num_read = 1 if op.form.paged is None else 3
    return (num_kept + num_read) * cache_bytes(workload)
