"""Which tile rows of one op each tile row of another op reads, in any columns; merges use this."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tuner.core.plan.graph.boxes import Ints
from tuner.core.plan.graph.edges import edges_between
from tuner.core.plan.graph.lowering import lower
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile


@dataclass(frozen=True, kw_only=True, eq=False)
class RowEdges:
    """Which producer tile rows each consumer tile row reads."""

    #: Op index of the tiles that write.
    producer: int
    #: Op index of the tiles that read.
    consumer: int
    #: Whether the consumer reads after its last step.
    is_late: bool
    #: [consumer tile rows], non-decreasing: first producer tile row whose boxes overlap with the row's reads.
    first: Ints
    #: [consumer tile rows], non-decreasing: one past the last such row.
    last: Ints


@lru_cache(maxsize=256)
def row_edges(workload: Workload, tile_ms: tuple[int, ...], op_indices: tuple[int, ...]) -> tuple[RowEdges, ...]:
    """Edges between the ops `op_indices` for tile heights `tile_ms`, whatever the widths and depths of tiles."""
    ops = (workload.tile_ops[op] for op in op_indices)
    spaces = tuple(lower(op, Tile(m=tile_ms[index], n=op.n, k=op.k)) for index, op in zip(op_indices, ops, strict=True))
    return tuple(
        RowEdges(
            producer=edge.producer,
            consumer=edge.consumer,
            is_late=edge.is_late,
            first=edge.rows[0],
            last=edge.rows[1],
        )
        for edge in edges_between(op_indices, spaces)
    )
