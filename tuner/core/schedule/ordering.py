"""What is chosen: a tiling (compile time, it changes the source) and an ordering (run time, it changes the plan)."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from tuner.core.schedule.attention import AttentionSchedule
from tuner.core.schedule.tiling import CacheHint, Engine, Epilogue, Tile, Tiling, Warpgroups


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


#: Rasters whose width says nothing, and is 1.
WIDTHLESS = (RasterKind.ROW, RasterKind.COLUMN, RasterKind.MORTON, RasterKind.HILBERT)


@dataclass(frozen=True, kw_only=True)
class Raster:
    """A walk over one op's tile grid."""

    #: The curve.
    kind: RasterKind = RasterKind.ROW
    #: Tile rows of a group, tile columns of a panel, or panels of the cache that an exact path is for; else 1.
    width: int = 1

    def __str__(self) -> str:
        return str(self.kind) if self.kind in WIDTHLESS else f"{self.kind}{self.width}"


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


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """A merge of the ops' walks."""

    #: The rule.
    kind: InterleaveKind = InterleaveKind.PRODUCER_FIRST
    #: Producer tile rows per band; 0 where there are no bands.
    rows: int = 0
    #: Bands by which a consumer stays behind its producer; 0 where there are no bands.
    lag: int = 0
    #: Parts of the consumer's tile columns: the first is computed band by band, the others after the producer's end.
    chunks: int = 1

    def __str__(self) -> str:
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
    #: Of results of older kernels alone: no kernel lets CTAs draw the other side's tasks any more.
    STEALING = "stealing"

    @property
    def is_static(self) -> bool:
        """Whether each CTA has a queue of its own."""
        return self in (Assignment.STATIC, Assignment.SHARES)


#: What kernels do.
ASSIGNMENTS = tuple(one for one in Assignment if one is not Assignment.STEALING)


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """All that is a table of integers at run time: thousands of orderings share one compiled kernel."""

    #: One raster per op, in the workload's order.
    rasters: tuple[Raster, ...]
    #: Merge of the ops' walks.
    interleave: Interleave = Interleave()
    #: What a signal stands for.
    granularity: Granularity = Granularity.ROW
    #: How tasks reach CTAs.
    assignment: Assignment = Assignment.TICKET
    #: Persistent CTAs per SM, 1 or 2.
    ctas_per_sm: int = 1
    #: SMs left free for others.
    reserved_sms: int = 0
    #: Tiles of a chunk, the stride, or tile rows of a batch; 1 for the other granularities.
    sync_width: int = 1
    #: Eighths of the CTAs that run the first op's tiles only, the others running the rest; 0 for no partition.
    partition: int = 0
    #: Whether a run of tasks of one op takes all tiles' first parts, then all second ones; else a tile's parts follow
    #: each other. Only where an op is split.
    part_major: bool = False
    #: When a task waits for a signal.
    wait_position: WaitPosition = WaitPosition.TASK
    #: Percent of the stages that could be filled with weights, of which a CTA requests no more before a task's first
    #: waits are over; 0, 25, 50 or 100.
    run_ahead: int = 100
    #: Which k-steps a part of a tile takes. Only where an op is split.
    split_order: SplitOrder = SplitOrder.CONTIGUOUS
    #: Which tiles are split, of the ops whose tiles have parts; the others stay whole.
    split_tiles: SplitTiles = SplitTiles.ALL
    #: Of a chain that is launched run by run: the ops with which its later runs begin, ascending; else empty.
    run_starts: tuple[int, ...] = ()

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
        return f"{rasters} {self.interleave}{parts} {sync} {assigned} {grid}{runs}"


#: Fields that are in the JSON form only where they differ from these.
_LATER_TILING: dict[str, Any] = {
    "input_stages": 0,
    "window": 0,
    "ahead_window": 0,
    "startup_prefetch": 0,
    "warpgroups": Warpgroups.COOPERATIVE,
    "swap_ab": False,
    "in_band": False,
    "epilogue": Epilogue.DIRECT,
    "split_k": (),
    "cluster_m": 1,
    "cluster_n": 1,
    "cluster_k": 1,
    "resident_ctas": 1,
    "weight_hint": CacheHint.DEFAULT,
    "intermediate_hint": CacheHint.DEFAULT,
}
#: Those of them that are counts.
_LATER_COUNTS = (
    *("input_stages", "window", "ahead_window", "startup_prefetch"),
    *("cluster_m", "cluster_n", "cluster_k", "resident_ctas"),
)
_LATER_ORDERING: dict[str, Any] = {
    "sync_width": 1,
    "partition": 0,
    "part_major": False,
    "wait_position": WaitPosition.TASK,
    "run_ahead": 100,
    "split_order": SplitOrder.CONTIGUOUS,
    "split_tiles": SplitTiles.ALL,
    "run_starts": (),
}
_LATER_INTERLEAVE = {"lag": 0, "chunks": 1}


#: Of a workload without products.
NO_TILING, NO_ORDERING = Tiling(tiles=(), num_stages=0, num_warps=0), Ordering(rasters=())


@lru_cache(maxsize=1024)
def _as_dict(schedule: Schedule) -> bytes:
    """`asdict`, pickled: pages show the same schedules again and again, and a copy is made sooner than a walk."""
    return pickle.dumps(asdict(schedule))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One point of the space: what is compiled, and in which order it runs.

    Tiling and ordering are the products'. Where a workload has none, there are no tiles and no rasters.
    """

    tiling: Tiling
    ordering: Ordering
    #: One for each attention of the workload.
    attentions: tuple[AttentionSchedule, ...] = ()

    def __str__(self) -> str:
        products = (f"{self.tiling} | {self.ordering}",) if self.tiling.tiles else ()
        return " | ".join((*map(str, self.attentions), *products))

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse.

        What came later is left out while it has its default, so that digests outlive new axes.
        """
        data: dict[str, Any] = pickle.loads(_as_dict(self))
        data["attentions"] = [one.to_json() for one in self.attentions]
        if not self.attentions:
            del data["attentions"]
        if not self.tiling.tiles:
            return {"attentions": data["attentions"]}
        halves = (data["tiling"], data["ordering"], data["ordering"]["interleave"])
        for half, defaults in zip(halves, (_LATER_TILING, _LATER_ORDERING, _LATER_INTERLEAVE), strict=True):
            for name, default in defaults.items():
                if half[name] == default:
                    del half[name]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        attentions = tuple(map(AttentionSchedule.from_json, data.get("attentions", ())))
        if attentions and "tiling" not in data:
            return cls(tiling=NO_TILING, ordering=NO_ORDERING, attentions=attentions)
        tiling, ordering = data["tiling"], data["ordering"]
        interleave = ordering["interleave"]
        return cls(
            tiling=Tiling(
                engine=Engine(tiling["engine"]),
                tiles=tuple(Tile(**tile) for tile in tiling["tiles"]),
                num_stages=tiling["num_stages"],
                num_warps=tiling["num_warps"],
                **{name: tiling[name] for name in _LATER_COUNTS if name in tiling},
                warpgroups=Warpgroups(tiling.get("warpgroups", Warpgroups.COOPERATIVE)),
                swap_ab=tiling.get("swap_ab", False),
                in_band=tiling.get("in_band", False),
                epilogue=Epilogue(tiling.get("epilogue", Epilogue.DIRECT)),
                split_k=tuple(tiling.get("split_k", ())),
                weight_hint=CacheHint(tiling.get("weight_hint", CacheHint.DEFAULT)),
                intermediate_hint=CacheHint(tiling.get("intermediate_hint", CacheHint.DEFAULT)),
            ),
            ordering=Ordering(
                rasters=tuple(Raster(kind=RasterKind(r["kind"]), width=r["width"]) for r in ordering["rasters"]),
                interleave=Interleave(**{**interleave, "kind": InterleaveKind(interleave["kind"])}),
                granularity=Granularity(ordering["granularity"]),
                assignment=Assignment(ordering["assignment"]),
                ctas_per_sm=ordering["ctas_per_sm"],
                reserved_sms=ordering["reserved_sms"],
                **{name: type(value)(ordering[name]) for name, value in _LATER_ORDERING.items() if name in ordering},
            ),
            attentions=attentions,
        )

    @property
    def digest(self) -> str:
        """16 hex digits that name this schedule."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
