"""Requests that the L2 answers together: those of adjacent CTAs for the weights of one column of tiles, or for the
images of one row of tiles.

Two SMs of a TPC request the same bytes at the same time, and one read serves both (docs/findings/shared-weights.md).
A plain launch places neighbouring CTAs there, a programmatic one on whichever SMs become free.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tuner.core.plan.table.words import Plan
from tuner.core.schedule.tiling import Engine, Tiling

#: Share of CTAs with common weights that are adjacent in a programmatic launch: 6 to 44 % were observed.
TOGETHER_SHARE = 0.3
#: Share of the bytes requested by both CTAs that passes the link.
PASSING_SHARE = 0.5


def merged_shares(plan: Plan, tiling: Tiling, *, is_apart: bool, of_inputs: bool = False) -> Mapping[int, float]:
    """By op: the share of its tasks whose weights are requested together with a neighbour's, if there are any.

    Args:
        plan: the tasks and their queues.
        tiling: the plan's; requests are merged only for CTAs that use TMA, in kernels without clusters.
        is_apart: whether the launch takes SMs as they become free.
        of_inputs: whether to return the share for the tasks' inputs instead.
    """
    if tiling.engine is not Engine.WGMMA or tiling.cluster_size > 1 or not plan.tasks[:, 2 if of_inputs else 1].any():
        return {}
    share = TOGETHER_SHARE if is_apart and tiling.neighbours == 1 else 1.0
    lane, turn = _places(plan)
    by_turn = np.lexsort((lane, turn))
    ops, rows, columns = plan.tasks[by_turn, :3].T
    if of_inputs:
        rows, columns = columns, rows
    turns = turn[by_turn]
    is_pair = (
        (ops[1:] == ops[:-1]) & (columns[1:] == columns[:-1]) & (rows[1:] != rows[:-1]) & (turns[1:] == turns[:-1])
    )
    is_merged = np.zeros(len(ops), dtype=bool)
    is_merged[1:] |= is_pair
    is_merged[:-1] |= is_pair
    return {op: share * float(is_merged[ops == op].mean()) for op in np.unique(ops[is_merged]).tolist()}


def _places(plan: Plan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[task] the CTA that computes it, and its position among that CTA's tasks; tasks drawn by ticket are
    assigned round-robin.
    """
    number = np.arange(plan.num_tasks)
    if not plan.queues.size:
        return number % plan.num_ctas, number // plan.num_ctas
    lane = np.repeat(np.arange(plan.num_ctas), np.diff(plan.queues))
    return lane, number - plan.queues[lane]
