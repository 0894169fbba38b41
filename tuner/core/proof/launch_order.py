"""In which order a candidate's launches run: products in front of the attentions, the attentions, products behind."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.problem.workload import Workload


def launches_in_front(workload: Workload, launches: Sequence[Sequence[int]]) -> int:
    """How many of the products' launches run before the attentions', of which no launch lies on both sides.

    Args:
        workload: whose launches these are.
        launches: the indices of the ops of each launch of products, in order.
    """
    first = next(map(workload.tile_ops_before, workload.launch_ops), 0)
    return sum(max(ops) < first for ops in launches)
