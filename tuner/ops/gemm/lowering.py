"""What the tiles of a product read and write."""

from __future__ import annotations

from tuner.core.plan.graph.boxes import STEP, Box, BoxRead, TileSpace, along, whole
from tuner.core.schedule.tiling import Tile
from tuner.ops.gemm.op import GemmOp


def lower(op: GemmOp, tile: Tile, chosen: None = None, *, num_parts: int = 1, in_band: bool = False) -> TileSpace:
    """The tiles of C [m, n].

    A [m, k] and the weights [n, k] are read step by step; for a gated op, the weights of gate and up. The epilogue's
    inputs, for its own tile or its rows, are read after the last step. An A that is read in band arrives element by
    element. It is then also treated as read after the last step: the signal of a tile means that all of its inputs have
    arrived.
    """
    rows, columns = along(0, op.m, tile.m), along(1, op.n, tile.n)
    inputs = BoxRead(box=Box(tensor=op.source, extents=(rows, along(STEP, op.k, tile.k))), in_band=in_band)
    reads = [inputs]
    if in_band:
        reads.append(BoxRead(box=Box(tensor=op.source, extents=(rows, whole(op.k))), is_late=True))
    for tensor in (tensor for part in op.parts for tensor in part.step_reads(op)):
        reads.append(BoxRead(box=Box(tensor=tensor, extents=(rows, along(STEP, op.k, tile.k)))))
    for tensor, are_rows in (read for part in reversed(op.parts) for read in part.late_reads(op)):
        reads.append(
            BoxRead(box=Box(tensor=tensor, extents=(rows, whole(op.k) if are_rows else columns)), is_late=True)
        )
    written = (op.name, *(one.name for one in op.made))
    for half in range(op.rows_per_column):
        mine = along(1, op.n, tile.n, offset=half * op.n)
        reads.append(BoxRead(box=Box(tensor=f"{op.name}.weight", extents=(mine, along(STEP, op.k, tile.k)))))
    return TileSpace(
        name=op.name,
        grid=(-(-op.m // tile.m), -(-op.n // tile.n)),
        num_steps=-(-op.k // tile.k),
        num_parts=num_parts,
        writes=tuple(Box(tensor=name, extents=(rows, columns)) for name in written),
        reads=tuple(reads),
    )
