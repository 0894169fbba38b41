"""A study: schedules side by side that differ in a few words, with the memory traffic of each."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.plan.build import global_order
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.order.tile_paths import Stop, TileGrid
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import InvalidInput

#: Maximum tile rows and tile columns of a grid whose panels are counted.
MAX_SIDE = 8


def varied(kinds: Sequence[PlanKind], lines: Sequence[str]) -> list[str]:
    """For each schedule, given as its plan kind and its line: the words in which it differs from the others, in
    order, plus the name of its kind if there are several kinds. The library, whose line is empty, gets its name."""
    words = [line.split() for line in lines]
    shared = set[str].intersection(*(set(line) for line in words if line)) if any(words) else set[str]()
    is_mixed = len({kind for kind, line in zip(kinds, words, strict=True) if line}) > 1
    return [
        " ".join(
            (*([kind.heading] if is_mixed or not line else []), *(word for word in line if word not in shared | {"|"}))
        )
        for kind, line in zip(kinds, words, strict=True)
    ]


def panels_of(workload: Workload, candidate: Candidate, cache_size: int) -> int | None:
    """Operand panels that the candidate's order loads through a cache of `cache_size`, as `tuner orders` counts
    them. None if they are not counted: for workloads other than a product or a pair, for larger grids, and for
    orders that wait for later tiles."""
    assert candidate.schedule is not None
    workload, candidate = launched(workload, candidate)
    if workload.launch_ops or candidate.schedule is None:
        return None
    graph = tile_graph(workload, candidate.schedule.tiling)
    grids = [graph.grids[op] for op in graph.op_indices]
    is_pair = len(grids) == 2 and workload.producers_of(1) == (0,)
    if not (len(grids) == 1 or (is_pair and grids[0][0] == grids[1][0])):
        return None
    if max(max(grid) for grid in grids) > MAX_SIDE:
        return None
    second_cols = grids[1][1] if is_pair else 0
    grid = TileGrid(num_rows=grids[0][0], num_cols=grids[0][1], second_cols=second_cols, cache_size=cache_size)
    columns = global_order(graph, candidate.schedule.ordering)
    path = [Stop(*map(int, tile)) for tile in zip(*columns, strict=True)]
    try:
        return grid.steps(path)[-1].total
    except InvalidInput:
        return None
