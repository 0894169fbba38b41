"""The memory that an attention's tensors need on a card, which is checked before anything is allocated."""

from __future__ import annotations

from tuner.core.problem.workload import Workload
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.tensors.fitting import NUM_CHECKS


def cache_bytes(op: AttentionOp) -> int:
    """Bytes of the keys and values of all longest contexts."""
    return op.shape.cache_bytes(op.shape.sequences * op.shape.max_length)


def copy_bytes(op: AttentionOp) -> int:
    """Memory per slot: caches, queries and results; for a paged cache also the library's sorted copy."""
    copies = 1 if op.form.paged is None else 2
    return copies * cache_bytes(op) + 2 * op.m * op.n * op.shape.dtype.size_bytes


def bytes_of_checks(workload: Workload, op: AttentionOp) -> int:
    """Maximum memory that checks hold.

    Each has its own cache if a product writes to it; otherwise checks at edges share one. The library's inputs are
    additional: a copy without NaN, and for pages two more while they are sorted.
    """
    num_kept = NUM_CHECKS if workload.turned_for == op else 1
    num_read = 1 if op.form.paged is None else 3
    return (num_kept + num_read) * cache_bytes(op)
