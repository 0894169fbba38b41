"""Edges of a tile graph: which op of a launch reads what another op, or earlier tiles of the same op, wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tuner.core.plan.graph.boxes import BoxRead, Ints, Places, TileSpace
from tuner.core.plan.graph.needs import Needs, Ranges, Streamed, factors, needs


@dataclass(frozen=True, kw_only=True, eq=False)
class Edge:
    """An op's read, and an op of the same launch that writes the tensor that it reads. Compared by identity."""

    #: Op index of the tiles that write.
    producer: int
    #: Op index of the tiles that read; the same one for an op that reads what its earlier tiles wrote.
    consumer: int
    read: BoxRead
    reader: TileSpace
    writer: TileSpace

    @property
    def is_late(self) -> bool:
        """Whether the consumer reads after its last step."""
        return self.read.is_late

    def needs(self, places: Places, steps: Ints) -> Needs:
        """Which of the producer's tiles are read by tasks of the consumer with these tiles; see `needs.needs`."""
        return needs(self.read, self.writer, places, steps)

    def needs_of_tiles(self) -> Needs:
        """Same as `needs` for every whole tile of the consumer, in the order of their numbers."""
        steps = np.tile([0, 1, self.reader.num_steps], (self.reader.num_tiles, 1))
        return self.needs(self.reader.all_places, steps)

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """[consumer tile rows] the first tile row of the producer that each reads, and one past the last; equal if
        it reads nothing."""
        rows, *others = factors(self.read, self.writer) or (None,)
        has_others = all(other is not None and other.is_never_empty for other in others)
        if isinstance(rows, Ranges) and rows.axes == (0,) and self._has_plain_rows and has_others:
            return rows.bounds[rows.of, 0], rows.bounds[rows.of, 1]
        (num_rows, num_cols), of_tiles = self.writer.word_grid, self.needs_of_tiles()
        first = np.full(self.reader.word_grid[0], num_rows, dtype=np.int64)
        last = first.copy()
        tiles, of = of_tiles.gathered(of_tiles.of)
        read, row = of_tiles.tiles[tiles] // num_cols, of // self.reader.word_grid[1]
        np.minimum.at(first, row, read)
        last[np.unique(row)] = 0
        np.maximum.at(last, row, read + 1)
        return first, last

    @property
    def stream_along_columns(self) -> Streamed | None:
        """Which steps read which of the producer's last coordinates, if its boxes are separable in this way."""
        last = (factors(self.read, self.writer) or (None,))[-1]
        return last if isinstance(last, Streamed) else None

    @property
    def _has_plain_rows(self) -> bool:
        """Whether a row of either op is a single coordinate."""
        return self.reader.row_axes == 1 and self.writer.row_axes == 1


@lru_cache(maxsize=512)
def edges_between(op_indices: tuple[int, ...], spaces: tuple[TileSpace, ...]) -> tuple[Edge, ...]:
    """All edges among ops of a launch: by consumer, then by its reads, then by producer. There are none from earlier
    launches: stream order covers these."""
    ops: Sequence[tuple[int, TileSpace]] = list(zip(op_indices, spaces, strict=True))
    writers = [(producer, writer, {box.tensor for box in writer.writes}) for producer, writer in ops]
    return tuple(
        Edge(producer=producer, consumer=consumer, read=read, reader=reader, writer=writer)
        for consumer, reader in ops
        for read in reader.reads
        for producer, writer, tensors in writers
        if read.box.tensor in tensors and not (producer == consumer and _is_in_place(read, writer))
    )


def _is_in_place(read: BoxRead, writer: TileSpace) -> bool:
    """Whether each tile reads only what it writes itself, before writing it: no tile reads an element of another
    one.
    """
    boxes = [box for box in writer.writes if box.tensor == read.box.tensor]
    return len(boxes) == 1 and all(
        mine.axes == theirs.axes and np.array_equal(mine.begin, theirs.begin) and np.array_equal(mine.end, theirs.end)
        for mine, theirs in zip(read.box.extents, boxes[0].extents, strict=True)
    )
