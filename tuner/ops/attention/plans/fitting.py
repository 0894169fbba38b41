"""What an attention's tensors take on a card: asked before anything is allocated."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.tensors.fitting import NUM_CHECKS


def cache_bytes(op: AttentionOp) -> int:
    """Keys and values of all longest contexts."""
    return op.shape.cache_bytes(op.shape.sequences * op.shape.max_length)


def copy_bytes(op: AttentionOp) -> int:
    """Of a slot: caches, queries and results; of a paged cache the library has a copy in order, too."""
    copies = 1 if op.form.paged is None else 2
    return copies * cache_bytes(op) + 2 * op.m * op.n * op.shape.dtype.size_bytes


def bytes_of_checks(workload: Workload, op: AttentionOp) -> int:
    """What checks keep, at their largest.

    Each has a cache of its own where a product writes to it, else those at edges share one. Beside it stands what the
    library reads: a copy without NaN, and of pages in order two more while they are gathered.
    """
    num_kept = NUM_CHECKS if workload.turned_for == op else 1
    num_read = 1 if op.form.paged is None else 3
    return (num_kept + num_read) * cache_bytes(op)
