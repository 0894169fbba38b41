"""What an attention's caches take of a card's memory, by their sizes: asked before anything is allocated."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.fitting import NUM_CHECKS


def cache_bytes(workload: Workload) -> int:
    """Keys and values of all longest contexts of the workload's attention."""
    op: AttentionOp = workload.launch_ops[0]
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
