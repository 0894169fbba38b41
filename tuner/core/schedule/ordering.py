"""The part of a schedule that is a table of integers at run time: the order of tasks, their signals, and their
assignment to CTAs."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.core.problem.rows.added import added_rows, check_broken
from tuner.core.problem.rows.raster import RasterRow
from tuner.core.schedule.axis import LATER, axis, whole_step, words_of

#: Entry-point group in which packages declare rasters.
RASTER_GROUP = "tuner.rasters"
_WIDTHS = (2, 4, 8, 16)


class RasterKind(StrEnum):
    """The order of the tiles of one op."""

    row: RasterRow

    def __new__(cls, row: RasterRow | str) -> RasterKind:
        """The member for a row; if given a name, looks up the existing member."""
        assert isinstance(row, RasterRow), row
        member = str.__new__(cls, row.name)
        member._value_, member.row = row.name, row
        return member

    #: Along each tile row, row by row.
    ROW = RasterRow(name="row", number=0, sentence="row by row")
    #: Along each tile column, column by column.
    COLUMN = RasterRow(name="column", number=1, sentence="column by column")
    #: Groups of `width` tile rows; inside a group, column by column (GROUP_M).
    GROUPED = RasterRow(
        name="grouped",
        number=2,
        sentence="in groups of {width} tile rows, column by column inside a group",
        least_width=2,
        widths=_WIDTHS,
    )
    #: Panels of `width` tile columns; inside a panel, row by row.
    PANEL = RasterRow(
        name="panel",
        number=3,
        sentence="in panels of {width} tile columns, row by row inside a panel",
        least_width=2,
        widths=_WIDTHS,
    )
    #: Panels of `width` tile columns, alternating down and up (boustrophedon); inside a panel, row by row.
    SNAKE = RasterRow(
        name="snake",
        number=4,
        sentence="in panels of {width} tile columns, alternating down and up",
        widths=(1, 2, 4, 8),
    )
    #: Z order: the bits of row and column interleaved.
    MORTON = RasterRow(name="morton", number=5, sentence="in Z order")
    #: A Hilbert curve generalised to any rectangle; each step leads to an adjacent tile.
    HILBERT = RasterRow(name="hilbert", number=6, sentence="along a Hilbert curve")
    #: The path with the least traffic through a cache of `width` operand panels; up to 4 x 4 tiles.
    EXACT = RasterRow(
        name="exact",
        number=7,
        sentence="along the path with the least traffic through a cache of {width} panels",
        least_width=2,
        widths=(),
    )
    locals().update(
        {
            row.name.upper(): row
            for row in added_rows(RASTER_GROUP, RasterRow, (ROW, COLUMN, GROUPED, PANEL, SNAKE, MORTON, HILBERT, EXACT))
        }
    )

    @classmethod
    def _missing_(cls, value: object) -> None:
        check_broken(RASTER_GROUP, value)


@dataclass(frozen=True, kw_only=True)
class Raster:
    """A path over one op's tile grid."""

    #: The curve.
    kind: RasterKind = axis(
        RasterKind.ROW, param="raster", features=lambda value: [0.7 * (value is one) for one in RasterKind]
    )
    #: Tile rows of a group, tile columns of a panel, or panels of the cache that an exact path is for; otherwise 1.
    width: int = axis(1, param="raster_width", features=lambda value: (0.3 * math.log2(value),))

    def __str__(self) -> str:
        return f"{self.kind}{self.width}" if self.kind.row.has_width else str(self.kind)

    @property
    def sentence(self) -> str:
        """In words, e.g. ``in panels of 2 tile columns, row by row inside a panel``."""
        return self.kind.row.sentence.format(width=self.width)


class InterleaveKind(StrEnum):
    """How the orders of the ops are merged into one."""

    #: All of the producer, then all of the consumer.
    PRODUCER_FIRST = "producer_first"
    #: `rows` tile rows of the producer, then the consumer rows that these complete, and so on.
    BANDS = "bands"
    #: Half a producer tile row, then half of the rows that the previous row completed, and so on.
    HALF_ROWS = "half_rows"
    #: Tiles of independent ops mixed in proportion to their numbers.
    PROPORTIONAL = "proportional"
    #: Op by op, the one with the longest path to the end first (longest processing time).
    LONGEST_FIRST = "longest_first"
    #: From a table of tiles, which also replaces the raster of each op. The search does not propose it.
    GIVEN = "given"


#: Merges that follow a rule.
MERGES = tuple(one for one in InterleaveKind if one is not InterleaveKind.GIVEN)


#: Names of given orders.
ORDER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """A merge of the ops' orders."""

    #: The rule.
    kind: InterleaveKind = axis(
        InterleaveKind.PRODUCER_FIRST,
        param="interleave",
        features=lambda value: [float(value is one) for one in MERGES[1:]],
    )
    #: Producer tile rows per band; 0 if there are no bands.
    rows: int = axis(0, param="band_rows", features=lambda value: (0.3 * math.log2(1 + value),))
    #: Bands by which a consumer lags behind its producer; 0 if there are no bands.
    lag: int = axis(0, param="band_lag", since=LATER, features=lambda value: (0.5 * math.log2(1 + value),))
    #: Parts of the consumer's tile columns: the first is computed band by band, the others after the producer has
    #: finished.
    chunks: int = axis(1, param="column_chunks", since=LATER, features=lambda value: (0.5 * math.log2(value),))
    #: For a given order: op, tile row and tile column of every tile, in the order in which they start; otherwise empty.
    tiles: tuple[tuple[int, ...], ...] = axis((), since=LATER)
    #: The name of a given order, `ORDER_NAME`; empty if there is none.
    name: str = axis("", since=LATER, repr=False)

    @property
    def apart(self) -> Interleave:
        """What remains of it if each op has its own launch: of a given order, the order of each op's tiles."""
        of_ops = tuple(sorted(self.tiles, key=lambda tile: tile[0]))
        return replace(self, tiles=of_ops) if of_ops else Interleave()

    def __str__(self) -> str:
        if self.kind is InterleaveKind.GIVEN:
            return f"given-{self.name or hashlib.sha256(str(self.tiles).encode()).hexdigest()[:8]}"
        if self.kind is not InterleaveKind.BANDS:
            return str(self.kind)
        lag = f"-lag{self.lag}" if self.lag else ""
        return f"bands{self.rows}{lag}" + (f"-chunks{self.chunks}" if self.chunks > 1 else "")


class Granularity(StrEnum):
    """What one signal covers."""

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
    #: The whole producer.
    BARRIER = "barrier"


class WaitPosition(StrEnum):
    """When a task waits for a signal."""

    #: Before its first load, for all of its inputs.
    TASK = "task"
    #: Before the load of the first k-step that reads what the signal covers.
    SLICE = "slice"


class SplitOrder(StrEnum):
    """Which k-steps of its tile a part takes, if an op is split."""

    #: A contiguous share of them.
    CONTIGUOUS = "contiguous"
    #: Every P-th one: part p of P starts with the p-th, so that all parts move along k together.
    STRIDED = "strided"


class SplitTiles(StrEnum):
    """Which tiles of the ops that are split are computed in parts."""

    #: All tiles.
    ALL = "all"
    #: Those of the last, incomplete wave.
    TAIL = "tail"
    #: Those of the last, incomplete wave of each op, even if the next op's tiles follow.
    TAILS = "tails"
    #: Tiles of the last wave, cut at k-steps such that each CTA gets an equal share of the work (stream-K).
    STREAM = "stream"


class Assignment(StrEnum):
    """How tasks reach CTAs."""

    #: One queue per CTA, filled round-robin from the global order (a static stride); needs every CTA co-resident.
    STATIC = "static"
    #: One queue per CTA, each a contiguous share of the global order; needs every CTA co-resident.
    SHARES = "shares"
    #: CTAs draw the next task of the global order from an atomic counter.
    TICKET = "ticket"
    #: A CTA begins with the task that has its own number in the global order, and draws the next ones from an atomic
    #: counter; needs every CTA co-resident.
    FIRST_WAVE = "first_wave"
    #: Only in results of older kernels: CTAs could draw tasks of the other side.
    STEALING = "stealing"

    @property
    def is_static(self) -> bool:
        """Whether each CTA has its own queue."""
        return self in (Assignment.STATIC, Assignment.SHARES)


#: Assignments that kernels support.
ASSIGNMENTS = tuple(one for one in Assignment if one is not Assignment.STEALING)


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The number of CTAs in a launch of tile ops, and how tasks reach them."""

    #: How tasks reach CTAs.
    assignment: Assignment = axis(
        Assignment.TICKET,
        features=lambda value: [value is one for one in Assignment if one is not Assignment.TICKET],
    )
    #: Persistent CTAs per SM, 1 or 2.
    ctas_per_sm: int = axis(
        1, features=lambda value: (value,), values_in_words="1 or 2", meaning="persistent CTAs per SM"
    )
    #: SMs that the launch leaves free.
    reserved_sms: int = axis(
        0,
        features=lambda value: (math.log2(1 + value),),
        values_in_words="0 and more",
        meaning="SMs that the launch leaves free",
    )
    #: Eighths of the CTAs that run the first op's tiles only, the others running the rest; 0 for no partition.
    partition: int = axis(0, since=LATER, features=lambda value: (value / 4,))


@dataclass(frozen=True, kw_only=True)
class TaskOrder:
    """The relation between the tile ops of a workload: the merge of their orders, what signals cover, runs."""

    #: Merge of the ops' orders.
    interleave: Interleave = Interleave()
    #: What a signal covers.
    granularity: Granularity = axis(Granularity.ROW, features=whole_step)
    #: Tiles of a chunk, the stride, or tile rows of a batch; 1 for the other granularities.
    sync_width: int = axis(1, since=LATER, features=lambda value: (0.3 * math.log2(value),))
    #: Whether a run of tasks of one op takes the first parts of all tiles, then all second parts; otherwise the parts
    #: of a tile follow each other. Only if an op is split.
    part_major: bool = axis(False, since=LATER)
    #: When a task waits for a signal.
    wait_position: WaitPosition = axis(WaitPosition.TASK, since=LATER)
    #: Percentage of the stages available for weights that a CTA may request before a task's first waits are over; 0,
    #: 25, 50 or 100.
    run_ahead: int = axis(100, since=LATER, features=lambda value: (value / 100,))
    #: Which k-steps a part of a tile takes. Only if an op is split.
    split_order: SplitOrder = axis(SplitOrder.CONTIGUOUS, since=LATER)
    #: Which tiles of the split ops are in parts; the others stay whole.
    split_tiles: SplitTiles = axis(
        SplitTiles.ALL,
        since=LATER,
        features=lambda value: (0.5 * (value is not SplitTiles.ALL), 0.5 * (value is SplitTiles.STREAM)),
    )
    #: The ops with which the later runs of a chain begin, ascending, if it is launched run by run; otherwise empty.
    run_starts: tuple[int, ...] = axis((), since=LATER)


@dataclass(frozen=True, kw_only=True)
class Ordering(TaskOrder, GridConfig):
    """Everything that is a table of integers at run time, collected from a schedule's three levels: thousands of
    orderings share one compiled kernel."""

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
