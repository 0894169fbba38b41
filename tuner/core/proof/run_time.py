"""What a plan guarantees for every value of the run-time inputs that its ops declare, such as lengths.

A plan has a task for each tile that the largest values need, and its words are the same for all values. A task waits
and posts even if no work is left for it. So the proof of the words holds for all values under three conditions. The
tiles cover the largest value. All ops agree on the extent of a tensor, so that a task reads only what tasks with work
have written. Every wait is reached. A wait before a later step is allowed if its task has that step even at the
smallest values. Otherwise the task would post before that wait is over, and what its post implies beyond its own tile
might not be complete.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tuner.core.plan.graph.boxes import STEP, Bound, Box, Extent, Ints, TileSpace
from tuner.core.plan.graph.needs import intervals_of
from tuner.core.plan.graph.tile_graph import TaskGraph
from tuner.core.plan.table.words import EPILOGUE_STEP, Plan
from tuner.core.proof.liveness import task_name
from tuner.errors import CoverageError, LivenessError


def check_run_time(plan: Plan, graph: TaskGraph) -> None:
    """Returns if a plan that is proven for its words is valid for every value of its run-time inputs.

    Raises:
        CoverageError: ops disagree on the extent of a tensor, or their tiles do not cover the largest value.
        LivenessError: there are values for which a task does not reach one of its waits; the witness has both.
    """
    if not any(space.bounds for space in graph.spaces.values()):
        return
    _check_agreement(graph.spaces)
    for space in graph.spaces.values():
        check_reach(space)
    for op, space in graph.spaces.items():
        if space.bounds:
            _check_waits(plan, graph, op)


def _check_agreement(spaces: Mapping[int, TileSpace]) -> None:
    said: dict[str, tuple[frozenset[Bound], str]] = {}
    for space in spaces.values():
        for tensor in sorted({box.tensor for box in (*space.writes, *(read.box for read in space.reads))}):
            mine = frozenset(bound for bound in space.bounds if bound.tensor == tensor)
            theirs, other = said.setdefault(tensor, (mine, space.name))
            if mine != theirs:
                names = [_bounds_text(bounds) for bounds in (theirs, mine)]
                witness = f"{tensor} is {names[0]} for {other}, but {names[1]} for {space.name}"
                raise CoverageError("ops disagree on the extent of a tensor at run time", witness)


def _bounds_text(bounds: frozenset[Bound]) -> str:
    texts = sorted(f"dimension {one.dimension} by {one.limit.name}" for one in bounds)
    return f"bounded in {', '.join(texts)}" if texts else "not bounded"


def check_reach(space: TileSpace) -> None:
    """Returns if the op's boxes cover the largest values of its run-time inputs, and each box depends on one number.

    Raises:
        CoverageError: they do not, with the tensor, the extent and the largest value; or a box depends on several
            numbers.
    """
    for bound in space.bounds:
        boxes = [box for box in (*space.writes, *(read.box for read in space.reads)) if box.tensor == bound.tensor]
        for box in boxes:
            reached = int(box.extents[bound.dimension].end.max(initial=0))
            if reached < bound.limit.most:
                what = f"{space.name}'s boxes of {bound.tensor} reach to {reached} in dimension {bound.dimension}"
                witness = f"{what}; {bound.limit.name} is {bound.limit.least} to {bound.limit.most}"
                raise CoverageError("tiles do not cover the range of a run-time input", witness)
            if bound.by is None:
                continue
            numbers = box.extents[bound.by]
            if (numbers.end - numbers.begin != 1).any() or numbers.end.max(initial=0) > bound.limit.count:
                what = f"each of {space.name}'s boxes of {bound.tensor} must have one index below {bound.limit.count}"
                witness = f"{what}, the size of {bound.limit.name}, in dimension {bound.by}"
                raise CoverageError("a box has no index of a run-time input, or several", witness)


def _check_waits(plan: Plan, graph: TaskGraph, op: int) -> None:
    """Checks that each wait comes before the first step, after the last one, or before a step that exists even at the
    smallest values."""
    space, mine = graph.spaces[op], np.flatnonzero(plan.tasks[:, 0] == op)
    begin, end = plan.tasks[mine, 3].astype(np.int64), plan.tasks[mine, 4].astype(np.int64)
    num_waits = end - begin
    of_task = np.repeat(np.arange(len(mine)), num_waits)
    waits = np.arange(num_waits.sum()) + np.repeat(begin - (np.cumsum(num_waits) - num_waits), num_waits)
    step = plan.waits[waits, 4].astype(np.int64)
    least = least_steps(space, space.numbers(plan.tasks[mine]), graph.steps_of(plan.tasks[mine]))
    lost = np.flatnonzero((step > 0) & (step != EPILOGUE_STEP) & (step >= least[of_task]))
    if lost.size:
        task, wait = int(mine[of_task[lost[0]]]), plan.waits[waits[lost[0]]].tolist()
        limits = " and ".join(sorted({f"{bound.limit.name} = {bound.limit.least}" for bound in space.bounds}))
        who = f"{task_name(plan, graph, task)} waits for signals {wait[0]}..{wait[1] - 1} before step {wait[4]}"
        has = f"with {limits} it has {least[of_task[lost[0]]]} steps"
        raise LivenessError("a task may not reach one of its waits", f"{who}; {has}, and posts without that wait")


def least_steps(space: TileSpace, tiles: Ints, steps: Ints) -> Ints:
    """[tasks] steps of each task at the smallest values of all run-time inputs; 0 if nothing is left of its tile.

    Args:
        space: the op's tiles.
        tiles: [tasks] the number of each task's tile.
        steps: [tasks, 3] the first step of each task, the stride, and the number of steps.
    """
    has_tile = np.ones(space.num_tiles, dtype=np.bool_)
    has_step = np.ones((space.num_tiles, space.num_steps), dtype=np.bool_)
    for bound in space.bounds:
        for box in (box for box in space.writes if box.tensor == bound.tensor):
            begin, _ = intervals_of(box.extents[bound.dimension], space)
            has_tile &= begin < bound.limit.least
        for read in (read for read in space.reads if read.box.tensor == bound.tensor and not read.is_late):
            has_step &= _begins(read.box, bound, space) < bound.limit.least
    has_step &= has_tile[:, None]
    # Steps are skipped from the first missing one on.
    kept = np.where(has_step.all(axis=1), space.num_steps, has_step.argmin(axis=1))[tiles]
    first, stride, count = steps.T
    found: Ints = np.clip(-((first - kept) // stride), 0, count)
    return found


def _begins(box: Box, bound: Bound, space: TileSpace) -> Ints:
    """[tiles, steps] where each box begins in the bounded dimension."""
    extent = box.extents[bound.dimension]
    if STEP not in extent.axes:
        return np.broadcast_to(intervals_of(extent, space)[0][:, None], (space.num_tiles, space.num_steps))
    by_step = [Extent(axes=extent.axes[:-1], begin=begin, end=begin) for begin in np.moveaxis(extent.begin, -1, 0)]
    return np.stack([intervals_of(one, space)[0] for one in by_step], axis=1)
