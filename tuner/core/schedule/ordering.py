"""What is a table of integers at run time: the order of tasks, their signals, and how they reach the CTAs."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.core.schedule.axis import LATER, axis, whole_step, words_of


class RasterKind(StrEnum):
    """The order in which the tiles of one op are walked."""

    #: Along the columns of a row of tiles, row by row.
    ROW = "row"
    #: Along the rows of a column of tiles, column by column.
    COLUMN = "column"
    #: Groups of `width` tile rows; inside a group, column by column (GROUP_M).
    GROUPED = "grouped"
    #: Panels of `width` tile columns; inside a panel, row by row.
    PANEL = "panel"
    #: Panels of `width` tile columns, walked down and up in turns (boustrophedon); inside a panel, row by row.
    SNAKE = "snake"
    #: Z order: the bits of row and column interleaved.
    MORTON = "morton"
    #: A Hilbert curve generalised to any rectangle; each step leads to an adjacent tile.
    HILBERT = "hilbert"
    #: The path of least traffic through a cache of `width` operand panels; up to 4 x 4 tiles.
    EXACT = "exact"


#: What people read of each; those without a width have the width 1.
RASTER_SENTENCES = {
    RasterKind.ROW: "row by row",
    RasterKind.COLUMN: "column by column",
    RasterKind.GROUPED: "in groups of {width} tile rows, column by column inside a group",
    RasterKind.PANEL: "in panels of {width} tile columns, row by row inside a panel",
    RasterKind.SNAKE: "in panels of {width} tile columns, alternating down and up",
    RasterKind.MORTON: "in Z order",
    RasterKind.HILBERT: "along a Hilbert curve",
    RasterKind.EXACT: "along the path with the least traffic through a cache of {width} panels",
}
#: Rasters whose width says nothing, and is 1.
WIDTHLESS = tuple(kind for kind, sentence in RASTER_SENTENCES.items() if "{width}" not in sentence)


@dataclass(frozen=True, kw_only=True)
class Raster:
    """A walk over one op's tile grid."""

    #: The curve.
    kind: RasterKind = axis(
        RasterKind.ROW, param="raster", features=lambda value: [0.7 * (value is one) for one in RasterKind]
    )
    #: Tile rows of a group, tile columns of a panel, or panels of the cache that an exact path is for; else 1.
    width: int = axis(1, param="raster_width", features=lambda value: (0.3 * math.log2(value),))

    def __str__(self) -> str:
        return str(self.kind) if self.kind in WIDTHLESS else f"{self.kind}{self.width}"

    @property
    def sentence(self) -> str:
        """For people, e.g. ``in panels of 2 tile columns, row by row inside a panel``."""
        return RASTER_SENTENCES[self.kind].format(width=self.width)


class InterleaveKind(StrEnum):
    """How the ops' walks are merged into one order."""

    #: All of the producer, then all of the consumer.
    PRODUCER_FIRST = "producer_first"
    #: `rows` tile rows of the producer, then the consumer rows that these complete, and so on.
    BANDS = "bands"
    #: Half a producer tile row, then half of what the row before completed, and so on.
    HALF_ROWS = "half_rows"
    #: Tiles of independent ops mixed in proportion to their numbers.
    PROPORTIONAL = "proportional"
    #: Op by op, the one with the longest way to the end first (longest processing time).
    LONGEST_FIRST = "longest_first"
    #: As a table of tiles says, which is a raster of each op, too. No search offers it.
    GIVEN = "given"


#: Merges that are rules.
MERGES = tuple(one for one in InterleaveKind if one is not InterleaveKind.GIVEN)


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """A merge of the ops' walks."""

    #: The rule.
    kind: InterleaveKind = axis(
        InterleaveKind.PRODUCER_FIRST,
        param="interleave",
        features=lambda value: [float(value is one) for one in MERGES[1:]],
    )
    #: Producer tile rows per band; 0 where there are no bands.
    rows: int = axis(0, param="band_rows", features=lambda value: (0.3 * math.log2(1 + value),))
    #: Bands by which a consumer stays behind its producer; 0 where there are no bands.
    lag: int = axis(0, param="band_lag", since=LATER, features=lambda value: (0.5 * math.log2(1 + value),))
    #: Parts of the consumer's tile columns: the first is computed band by band, the others after the producer's end.
    chunks: int = axis(1, param="column_chunks", since=LATER, features=lambda value: (0.5 * math.log2(value),))
    #: Of a given order: op, tile row and tile column of every tile, in the order in which they are begun; else empty.
    tiles: tuple[tuple[int, ...], ...] = axis((), since=LATER)

    @property
    def apart(self) -> Interleave:
        """What is left of it where each op has a launch to itself: of a given order each op's own."""
        of_ops = tuple(sorted(self.tiles, key=lambda tile: tile[0]))
        return replace(self, tiles=of_ops) if of_ops else Interleave()

    def __str__(self) -> str:
        if self.kind is InterleaveKind.GIVEN:
            return f"given-{hashlib.sha256(str(self.tiles).encode()).hexdigest()[:8]}"
        if self.kind is not InterleaveKind.BANDS:
            return str(self.kind)
        lag = f"-lag{self.lag}" if self.lag else ""
        return f"bands{self.rows}{lag}" + (f"-chunks{self.chunks}" if self.chunks > 1 else "")


class Granularity(StrEnum):
    """What one signal stands for."""

    #: A producer tile row: every tile of the row posts to it.
    ROW = "row"
    #: One producer tile.
    TILE = "tile"
    #: `sync_width` neighbouring tiles of a producer tile row: a chunk of the consumer's K.
    CHUNK = "chunk"
    #: Every `sync_width`-th tile of a producer tile row.
    STRIDED = "strided"
    #: `sync_width` producer tile rows.
    BATCH = "batch"
    #: All of the producer.
    BARRIER = "barrier"


class WaitPosition(StrEnum):
    """When a task waits for a signal."""

    #: Before its first load, for all that it reads.
    TASK = "task"
    #: Before the load of the first k-step that reads what the signal stands for.
    SLICE = "slice"


class SplitOrder(StrEnum):
    """Which k-steps of its tile a part takes, where an op is split."""

    #: A share of them in a row.
    CONTIGUOUS = "contiguous"
    #: Every P-th one: part p of P those from the p-th on, so that all parts walk along k together.
    STRIDED = "strided"


class SplitTiles(StrEnum):
    """Which tiles of the ops that are split are computed in parts."""

    #: All of them.
    ALL = "all"
    #: Those of the last, incomplete wave.
    TAIL = "tail"
    #: Those of the last, incomplete wave of each op, though the next op's tiles follow.
    TAILS = "tails"
    #: Of these such, and at such k-steps, that each CTA gets an even share of the work (stream-K).
    STREAM = "stream"


class Assignment(StrEnum):
    """How tasks reach CTAs."""

    #: A queue per CTA, dealt round-robin from the global order (a static stride); needs every CTA co-resident.
    STATIC = "static"
    #: A queue per CTA, each a contiguous share of the global order; needs every CTA co-resident.
    SHARES = "shares"
    #: CTAs draw the next task of the global order from an atomic counter.
    TICKET = "ticket"
    #: A CTA begins with the task of its own number in the global order, and draws the next ones from an atomic counter;
    #: needs every CTA co-resident.
    FIRST_WAVE = "first_wave"
    #: Only in results of older kernels: no kernel lets CTAs draw the other side's tasks any more.
    STEALING = "stealing"

    @property
    def is_static(self) -> bool:
        """Whether each CTA has a queue of its own."""
        return self in (Assignment.STATIC, Assignment.SHARES)


#: What kernels do.
ASSIGNMENTS = tuple(one for one in Assignment if one is not Assignment.STEALING)


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """How many CTAs a launch of tile ops has, and how tasks reach them."""

    #: How tasks reach CTAs.
    assignment: Assignment = axis(
        Assignment.TICKET,
        features=lambda value: [value is one for one in Assignment if one is not Assignment.TICKET],
    )
    #: Persistent CTAs per SM, 1 or 2.
    ctas_per_sm: int = axis(
        1, features=lambda value: (value,), values_in_words="1 or 2", meaning="persistent CTAs per SM"
    )
    #: SMs left free for others.
    reserved_sms: int = axis(
        0,
        features=lambda value: (math.log2(1 + value),),
        values_in_words="0 and more",
        meaning="SMs left free for other work",
    )
    #: Eighths of the CTAs that run the first op's tiles only, the others running the rest; 0 for no partition.
    partition: int = axis(0, since=LATER, features=lambda value: (value / 4,))


@dataclass(frozen=True, kw_only=True)
class TaskOrder:
    """What holds between the tile ops of a workload: the merge of their walks, what signals stand for, runs."""

    #: Merge of the ops' walks.
    interleave: Interleave = Interleave()
    #: What a signal stands for.
    granularity: Granularity = axis(Granularity.ROW, features=whole_step)
    #: Tiles of a chunk, the stride, or tile rows of a batch; 1 for the other granularities.
    sync_width: int = axis(1, since=LATER, features=lambda value: (0.3 * math.log2(value),))
    #: Whether a run of tasks of one op takes all tiles' first parts, then all second ones; else a tile's parts follow
    #: each other. Only where an op is split.
    part_major: bool = axis(False, since=LATER)
    #: When a task waits for a signal.
    wait_position: WaitPosition = axis(WaitPosition.TASK, since=LATER)
    #: Percent of the stages that could be filled with weights, of which a CTA requests no more before a task's first
    #: waits are over; 0, 25, 50 or 100.
    run_ahead: int = axis(100, since=LATER, features=lambda value: (value / 100,))
    #: Which k-steps a part of a tile takes. Only where an op is split.
    split_order: SplitOrder = axis(SplitOrder.CONTIGUOUS, since=LATER)
    #: Which tiles are split, of the ops whose tiles have parts; the others stay whole.
    split_tiles: SplitTiles = axis(
        SplitTiles.ALL,
        since=LATER,
        features=lambda value: (0.5 * (value is not SplitTiles.ALL), 0.5 * (value is SplitTiles.STREAM)),
    )
    #: Of a chain that is launched run by run: the ops with which its later runs begin, ascending; else empty.
    run_starts: tuple[int, ...] = axis((), since=LATER)


@dataclass(frozen=True, kw_only=True)
class Ordering(TaskOrder, GridConfig):
    """All that is a table of integers at run time, as a schedule says it at three levels: thousands of orderings share
    one compiled kernel."""

    #: One raster per op, in the workload's order.
    rasters: tuple[Raster, ...]

    def __str__(self) -> str:
        rasters = "+".join(str(raster) for raster in self.rasters)
        grid = f"{self.ctas_per_sm}/SM" + (f" less {self.reserved_sms} SMs" if self.reserved_sms else "")
        sync = f"{self.granularity}{self.sync_width if self.sync_width > 1 else ''}-sync"
        sync += " by slice" if self.wait_position is WaitPosition.SLICE else ""
        sync += f" ahead{self.run_ahead}" if self.run_ahead != 100 else ""
        assigned = f"{self.assignment} {self.partition}/8" if self.partition else str(self.assignment)
        parts = " strided-parts" if self.split_order is SplitOrder.STRIDED else ""
        parts += " part-major" if self.part_major else ""
        parts += f" split-{self.split_tiles}" if self.split_tiles is not SplitTiles.ALL else ""
        runs = f" runs{'+'.join(map(str, self.run_starts))}" if self.run_starts else ""
        return f"{rasters} {self.interleave}{parts} {sync} {assigned} {grid}{runs}{words_of(self)}"
