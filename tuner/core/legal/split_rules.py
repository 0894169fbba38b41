"""Rules for splitting tiles into parts at run time: which tiles, where, and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tuner.core.plan.build import proportional
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.order.interleaves import merge_blocks
from tuner.core.plan.order.queues import Ints, queue_of_tasks, tail_of, tails_of
from tuner.core.plan.order.split_k import num_split_tiles, slots_problem
from tuner.core.plan.order.split_tasks import parted, parts_of, stream_split, streamed
from tuner.core.schedule.ordering import Assignment, Interleave, InterleaveKind, Ordering, SplitOrder, SplitTiles


def split_order_problem(graph: TileGraph, order: SplitOrder) -> str | None:
    """Why parts cannot take their k-steps in this order, or take the same ones under the default name."""
    if order is SplitOrder.CONTIGUOUS:
        return None
    split = [op for op in graph.op_indices if graph.num_parts(op) > 1]
    if not split:
        return "no op is split: use split order contiguous"
    if all(len(graph.steps(op)) == graph.num_parts(op) for op in split):
        return "each part is one k-step, so their order does not matter: use split order contiguous"
    return None


def part_order_problem(graph: TileGraph, interleave: Interleave) -> str | None:
    """Why the parts of tiles cannot be ordered part by part."""
    if interleave != Interleave():
        return "part_major needs producer_first, where the tasks of an op follow each other: drop part_major"
    if not any(graph.num_parts(op) > 1 and rows * cols > 1 for op, (rows, cols) in graph.grids.items()):
        return "no op has several tiles in parts, so part-major is the plain order: drop part_major"
    return None


def ops_in_order(graph: TileGraph, interleave: Interleave) -> Ints:
    """[tiles] the op of each tile of the global order, for any rasters."""
    blocks = merge_blocks(graph.workload, graph.tiling.tiles, graph.op_indices, interleave)
    sizes = [(block.row_end - block.row_begin) * (block.col_end - block.col_begin) for block in blocks]
    ops = np.repeat(np.array([block.op for block in blocks], dtype=np.int64), sizes)
    return ops[proportional(sizes)] if interleave.kind is InterleaveKind.PROPORTIONAL else ops


def tail_splits(graph: TileGraph, interleave: Interleave, partition: int, num_ctas: int) -> tuple[int, int]:
    """How many tiles of the split ops are in the launch's last wave, and how many there are."""
    ops = ops_in_order(graph, interleave)
    in_parts = parts_of(graph)[ops] > 1
    return int((tail_of(ops, num_ctas, partition) & in_parts).sum()), int(in_parts.sum())


def split_tiles_problem(graph: TileGraph, ordering: Ordering, num_ctas: int) -> str | None:
    """Why `split_tiles` has no effect on a fused launch or on separate ones, since no tile or every tile is in the
    last wave; or why the sums of the split tiles do not fit."""
    workload, tiling = graph.workload, graph.tiling
    num_split = num_split_tiles(workload, tiling)
    if ordering.split_tiles is SplitTiles.ALL:
        return slots_problem(workload, tiling, num_split)
    if not num_split:
        return "no op is split, so there is no tail to split: use split_tiles all"
    if ordering.part_major:
        return (
            "the parts of a tail run at the same time, so their order does not "
            "matter: drop part_major, or split_tiles all"
        )
    if ordering.split_tiles is SplitTiles.STREAM:
        return _stream_problem(graph, ordering, num_ctas) or slots_problem(workload, tiling, num_ctas)
    if ordering.assignment is Assignment.SHARES:
        return "shares are assigned as contiguous ranges and have no last wave: use static, or split_tiles all"
    if ordering.split_tiles is SplitTiles.TAILS:
        return _tails_problem(graph, ordering, num_ctas) or slots_problem(workload, tiling, num_split)
    tails = (tail_splits(launch, ordering.interleave, ordering.partition, num_ctas) for launch in _launches(graph))
    if not any(0 < num_tail < num_all for num_tail, num_all in tails):
        name = "split_tiles all" if num_split <= num_ctas else "an empty split_k"
        where = f"the last wave on {num_ctas} CTAs, of a fused launch or of one op's launch, has"
        return f"{where} none or all of the {num_split} tiles in parts: use {name}"
    return slots_problem(workload, tiling, num_ctas)


def _tails_problem(graph: TileGraph, ordering: Ordering, num_ctas: int) -> str | None:
    """Why splitting the last wave of each op is not a separate choice."""
    if ordering.partition:
        return "the sides of a partition have their own waves: use split_tiles tail, or partition 0"
    ops = ops_in_order(graph, ordering.interleave)
    in_parts = parts_of(graph)[ops] > 1
    split = tails_of(ops, num_ctas) & in_parts
    if np.array_equal(split, in_parts):
        return f"the last wave of each op has all of the {in_parts.sum()} tiles in parts: use split_tiles all"
    if np.array_equal(split, tail_of(ops, num_ctas) & in_parts):
        return "the last wave of each op is also that of the launch: use split_tiles tail"
    return (
        None
        if split.any()
        else f"the last wave of each op has no tile in parts on {num_ctas} CTAs: use split_tiles all"
    )


def _launches(graph: TileGraph) -> tuple[TileGraph, ...]:
    """The launch of each op alone, and that of all ops."""
    return (*(replace(graph, op_indices=(op,)) for op in graph.op_indices), graph)


def _stream_problem(graph: TileGraph, ordering: Ordering, num_ctas: int) -> str | None:
    """Why the tail's k-steps cannot be divided evenly among the CTAs, or which simpler name gives the same tasks."""
    if ordering.assignment is not Assignment.STATIC:
        return (
            f"even shares of the k-steps need queues that are filled by stride, not {ordering.assignment}: use static"
        )
    if ordering.split_order is not SplitOrder.CONTIGUOUS:
        return "an even share is a contiguous range of k-steps: use split order contiguous, or split_tiles tail"
    for launch in reversed(_launches(graph)):
        same = _plainer_split(launch, ordering, num_ctas)
        if same is None:
            return None
    where = f"even shares of the last wave on {num_ctas} CTAs, of a fused launch and of each op's launch,"
    return f"{where} are whole tiles or even parts: use {same}"


def _plainer_split(graph: TileGraph, ordering: Ordering, num_ctas: int) -> str | None:
    """A simpler setting that gives the same tasks and queues as dividing the tail by k-steps, if any."""
    ops = ops_in_order(graph, ordering.interleave)
    pieces = stream_split(graph, ops, num_ctas, ordering)
    repeats = np.bincount(pieces.tile)
    has_parts = repeats > 1
    if not has_parts.any():
        return "an empty split_k"
    if not np.array_equal(repeats[has_parts], parts_of(graph)[ops][has_parts]):
        return None
    order = ops, np.arange(ops.size, dtype=np.int64), np.zeros_like(ops)
    tasks, queue = streamed(graph, order, num_ctas, ordering)
    for name, is_split in (
        ("split_tiles tail", tail_of(ops, num_ctas, ordering.partition)),
        ("split_tiles all", np.ones_like(has_parts)),
    ):
        plain = parted(graph, order, is_split=is_split)
        if np.array_equal(tasks, plain) and np.array_equal(queue, queue_of_tasks(plain[:, 0], num_ctas, ordering)):
            return name
    return None
