"""Tilings of the wgmma engine that are worth trying on a workload and a GPU.

The legal ones go into the millions, most of them pointless. One CTA runs on an SM, so an op takes as long as the SM
with the most of it: tiles are cut so that whole waves of SMs are filled, with parts of tiles where whole ones do not
fill one. Stages are of a size that keeps the memory busy without many barriers, and the rings take the shared memory
that there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product, zip_longest
from math import ceil

from tuner.core.costs import L2_BYTES_PER_CLOCK
from tuner.core.engine_wgmma import (
    BLOCK_ROWS,
    COLUMNS,
    MAX_INPUT_STAGES,
    MAX_PRODUCT_COLUMNS,
    MAX_STAGES,
    PING_PONG_WARPS,
    STAGE_DEPTHS,
    WARP_ROWS,
    WARPS_PER_GROUP,
    height_problem,
    multiplied_rows,
    smem_bytes,
    stage_bytes,
    tensor_share,
    tile_problem,
    workload_problem,
)
from tuner.core.gpu import Gpu
from tuner.core.legality import tiling_problem
from tuner.core.split import SUM_BYTES, num_steps, num_tiles, waves
from tuner.core.tiling import Engine, Tile, Tiling, Warpgroups
from tuner.core.workload import GemmOp, Workload, WorkloadKind

#: Rows up to which the weights' bytes are what takes time: one low tile row, tasks cut for their bytes alone.
FEW_ROWS = 64
MAX_ROWS_OF_TILES_OF_64 = 256
#: Columns of a tile, at least.
NARROWEST = 16
#: More tile rows than this are not offered where a taller tile gives fewer.
MAX_TILE_ROWS = 64
PARTS = (1, 2, 3, 4, 6, 8)
MIN_STEPS_PER_PART = 4
#: Bytes of a stage of weights: less costs barriers, more leaves too few stages.
STAGE_BYTES = (12_288, 33_792)
#: Share of the best cut's rate that another one must have; fewer than `MIN_CUTS` are not offered ...
MIN_RATE = 0.85
MIN_CUTS = 6
#: ... nor more than this for all ops together, so that a job's tilings are a few thousand.
MAX_COMBINATIONS = 196
#: Per task, and more where it is a part: words, barriers, epilogue; arrival. Where another op reads the tile it also
#: waits for the last part's sum.
TASK_US = 0.3
PART_US = 0.5
READ_PART_US = 3.0
#: Rows of W of a task that reads its inputs often enough: with fewer it reads as many bytes of them.
FEW_COLUMNS = 32
#: Stages of about this size are tried first.
GOOD_STAGE_BYTES = 24_576
#: Depths of the inputs' ring where tiles are low; else it is as deep as the weights'.
INPUT_STAGES = (6, 4, 8)
#: Weights that a CTA has requested and not yet received, bytes, beside no limit: what is requested later waits behind
#: it, a signal and the intermediate too, and this much already keeps the memory busy.
WINDOW_BYTES = (65_536, 98_304)
#: Of an op's cuts, one in so many has a split tail, where there are such cuts.
TAIL_SHARE = 3
#: Tilings that are tried before a model knows anything: without split tails, and with.
NUM_GUESSES = 4
NUM_TAIL_GUESSES = 2


@dataclass(frozen=True)
class Height:
    """What all ops' tiles have in common."""

    #: Rows of a tile: of all CTAs of a cluster.
    m: int
    num_warps: int
    #: CTAs that share a tile's weights.
    cluster_m: int = 1
    warpgroups: Warpgroups = Warpgroups.COOPERATIVE

    @property
    def groups(self) -> int:
        """Warpgroups that multiply a task together."""
        return 1 if self.warpgroups is Warpgroups.PING_PONG else self.num_warps // WARPS_PER_GROUP

    @property
    def in_turns(self) -> Height:
        """The same by two warpgroups that take turns."""
        return replace(self, num_warps=PING_PONG_WARPS, warpgroups=Warpgroups.PING_PONG)

    def of_cta(self, tile: Tile) -> Tile:
        """What one CTA computes of the tile."""
        return replace(tile, m=tile.m // self.cluster_m)


#: For more rows, the most of a tile; the height is what covers the rows in as many tiles. Two CTAs with one tile read
#: its weights once; a warpgroup that multiplies two blocks has whole ones. With ping-pong one warpgroup holds all sums
#: of a tile.
HIGH_TILES = (
    Height(128, 8),
    Height(192, 12),
    Height(256, 8, 2),
    Height(256, 8),
    Height(64, 4),
    Height(128, 8).in_turns,
    Height(64, 4).in_turns,
)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One op cut into tasks."""

    tile: Tile
    #: Parts of a tile.
    parts: int
    #: Whether only the tail is split: the tiles are more than one wave.
    has_tail: bool
    #: The op's roofline over the time of the busiest SM.
    rate: float
    #: Tiles, or parts of them.
    num_tasks: int
    #: Of one of them, while all SMs are busy alike.
    task_us: float


class WgmmaOffers:
    """The offered tilings; none where the engine does not run the workload on the GPU."""

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        self._workload = workload
        self._gpu = gpu
        self._rows = max(op.m for op in workload.ops)
        combine = self._side_by_side if workload.kind is WorkloadKind.INDEPENDENT else self._one_by_one
        #: By tile height, a cut of each op: the fastest first.
        self._combined = {height: combine(height) for height in self.heights} if self.is_there else {}

    @property
    def is_there(self) -> bool:
        """Whether there are any."""
        return workload_problem(self._workload, self._gpu) is None

    @property
    def heights(self) -> tuple[Height, ...]:
        """Those that are worth a try."""
        if self._rows <= FEW_ROWS:
            return tuple(dict.fromkeys(self._low_heights()))
        lowest = FEW_ROWS if self._rows <= MAX_ROWS_OF_TILES_OF_64 else FEW_ROWS + 1
        useful = [most for most in HIGH_TILES if lowest <= most.m < 2 * self._rows]
        useful = [most for most in useful if -(-self._rows // most.m) <= MAX_TILE_ROWS]
        covering = dict.fromkeys(_covering(self._rows, most) for most in useful)
        fitting = tuple(one for one in covering if height_problem(one.m // one.cluster_m, one.groups) is None)
        return fitting or HIGH_TILES[:1]

    def _low_heights(self) -> Iterator[Height]:
        """One tile row; more where even so each tile of theirs has an SM of its own: then a CTA brings fewer rows."""
        for most in (FEW_ROWS, FEW_ROWS // 2, FEW_ROWS // 4):
            height = _covering(self._rows, Height(most, 4))
            num_tiles = sum(-(-op.m // height.m) * -(-op.n // NARROWEST) for op in self._workload.ops)
            if height.m >= self._rows or num_tiles <= self._gpu.num_sms:
                yield height

    def tilings(self) -> Iterator[Tiling]:
        """All of them, without repetition; the best filled of each height first."""
        apart = list(self._in_two_waves())
        yield from apart
        for height, combined in self._combined.items():
            for cuts in combined:
                yield from (tiling for tiling in self._with_rings(cuts, height) if tiling not in apart)

    def guesses(self) -> list[Tiling]:
        """Where to begin: of each height in turn the fastest cuts of different widths, each with rings that take what
        memory there is. Who multiplies in turns is one step away."""
        together = [height for height in self._combined if height.warpgroups is Warpgroups.COOPERATIVE]
        whole, tails = (self._in_turn(together, tails=tails) for tails in (False, True))
        return [*whole[: max(NUM_GUESSES, len(together))], *tails[:NUM_TAIL_GUESSES], *self._in_two_waves()]

    def _in_turn(self, heights: list[Height], *, tails: bool) -> list[Tiling]:
        found = [list(islice(self._of_height(height, tails=tails), NUM_GUESSES)) for height in heights]
        return [tiling for of_rank in zip_longest(*found) for tiling in of_rank if tiling is not None]

    def _of_height(self, height: Height, *, tails: bool) -> Iterator[Tiling]:
        """One tiling for each combination of widths and parts, in which the tail of some op is split or of none."""
        found: set[object] = set()
        for cuts in self._combined[height]:
            if any(cut.has_tail for cut in cuts) is not tails:
                continue
            widths = tuple((cut.tile.n, cut.parts) for cut in cuts)
            if widths not in found and (first := next(self._with_rings(cuts, height), None)):
                found.add(widths)
                yield first

    def _in_two_waves(self) -> Iterator[Tiling]:
        """At few rows: two tasks of each op per SM, so that the first half of the intermediate is there when the second
        op begins; wide tiles in deep stages, and a window."""
        if self._rows > FEW_ROWS or not self.is_there:
            return
        height = self.heights[0]
        lanes = self._gpu.num_clusters(height.cluster_m)
        chosen: list[Cut] = []
        for op in self._workload.ops:
            cuts = [c for c in self._all_cuts(op, height) if lanes < num_tiles(op, c.tile) * c.parts <= 2 * lanes]
            wide = [cut for cut in cuts if cut.tile.n * op.rows_per_column >= FEW_COLUMNS]
            fast = [cut for cut in wide if cut.rate >= MIN_RATE * cuts[0].rate]
            if not fast:
                return
            is_read = bool(self._workload.consumers_of(len(chosen)))
            chosen.append(max(fast, key=lambda cut: _by_depth(op, cut, is_read=is_read)))
        windowed = (tiling for tiling in self._with_rings(tuple(chosen), height) if tiling.window)
        yield from islice(windowed, 1)

    def near(self, tiling: Tiling) -> Iterator[Tiling]:
        """Tilings that differ in the height of the tiles and in who multiplies them, in the cut of one op, or in one
        number of the rings; the ring of weights becomes shorter where it would not fit."""
        for height in (*self.heights, *(height.in_turns for height in self.heights if height.groups == 1)):
            tiles = tuple(replace(tile, m=height.m) for tile in tiling.tiles)
            shape = {name: getattr(height, name) for name in ("num_warps", "cluster_m", "warpgroups")}
            yield from self._fitted(replace(tiling, tiles=tiles, cluster_n=1, **shape))
        whole = tiling.split_k or (1,) * len(tiling.tiles)
        for index, (op, tile) in enumerate(zip(self._workload.ops, tiling.tiles, strict=True)):
            own = Height(tile.m, tiling.num_warps, tiling.cluster_m, tiling.warpgroups)
            offered = self._combined.get(own, [])
            cuts = {(combined[index].tile, combined[index].parts) for combined in offered}
            cuts |= {(deep, whole[index]) for deep in _tiles(op, tile.m, tile.n)}
            cuts |= {(tile, parts) for parts in self._parts(op, tile, tiling.cluster_m)}
            for cut, parts in sorted(cuts, key=str):
                split = (*whole[:index], parts, *whole[index + 1 :])
                tiles = (*tiling.tiles[:index], cut, *tiling.tiles[index + 1 :])
                yield from self._fitted(replace(tiling, tiles=tiles, split_k=split if max(split) > 1 else ()))
        for num_stages in range(2, MAX_STAGES + 1):
            yield replace(tiling, num_stages=num_stages, window=min(tiling.window, num_stages - 1))
        yield from (replace(tiling, input_stages=stages) for stages in range(2, MAX_INPUT_STAGES + 1))
        yield from (replace(tiling, window=window) for window in range(tiling.num_stages))

    def _one_by_one(self, height: Height) -> list[tuple[Cut, ...]]:
        """Of ops that follow each other: each as if it had all SMs."""
        most = max(2, int(MAX_COMBINATIONS ** (1 / len(self._workload.ops)) + 1e-9))
        return sorted(product(*(self._best_cuts(op, height, most) for op in self._workload.ops)), key=_by_rate)

    def _side_by_side(self, height: Height) -> list[tuple[Cut, ...]]:
        """Of ops that share the SMs: the tasks of all of them are to fill whole waves."""
        lanes = self._gpu.num_clusters(height.cluster_m)
        timed = [
            (_makespan_us(cuts, lanes), cuts)
            for cuts in product(*(self._all_cuts(op, height) for op in self._workload.ops))
            if not any(cut.has_tail for cut in cuts)
        ]
        timed.sort(key=lambda one: one[0])
        return [cuts for time_us, cuts in timed if time_us <= timed[0][0] / MIN_RATE][:MAX_COMBINATIONS]

    def _best_cuts(self, op: GemmOp, height: Height, most: int) -> list[Cut]:
        """At most so many that fill the SMs, the best first; where few do, the best ones. Some have split tails."""
        every = self._all_cuts(op, height)
        cuts = [cut for cut in every if not cut.has_tail]
        tails = [cut for cut in every if cut.has_tail][: most // TAIL_SHARE]
        filled = [cut for cut in cuts if cut.rate >= MIN_RATE * cuts[0].rate]
        best = (filled if len(filled) >= MIN_CUTS else cuts[:MIN_CUTS])[: most - len(tails)]
        return [cut for cut in every if cut in best or cut in tails]

    def _all_cuts(self, op: GemmOp, height: Height) -> list[Cut]:
        """The fastest first."""
        widest = min(MAX_PRODUCT_COLUMNS // op.rows_per_column, -(-op.n // COLUMNS) * COLUMNS)
        tiles = [
            tile
            for n in range(min(NARROWEST, widest), widest + 1, COLUMNS)
            for tile in _tiles(op, height.m, n)
            if tile_problem(op, height.of_cta(tile), height.groups) is None
        ]
        cuts = [
            self._cut(op, tile, parts, height) for tile in tiles for parts in self._parts(op, tile, height.cluster_m)
        ]
        return sorted(cuts, key=lambda cut: (-round(cut.rate, 3), abs(_stage_bytes(op, cut.tile) - GOOD_STAGE_BYTES)))

    def _cut(self, op: GemmOp, tile: Tile, parts: int, height: Height) -> Cut:
        """How long the busiest SM takes for its tasks, by bytes and by products, against the roofline of the op."""
        gpu, num_rows, all_steps = self._gpu, ceil(op.m / tile.m), num_steps(op, tile)
        num_lanes = gpu.num_clusters(height.cluster_m)
        num_whole, num_parted = waves(num_tiles(op, tile), parts, num_lanes)
        crowding = tile.n * tile.k * num_lanes / (num_rows * op.n * op.k)  # of an SM by one k-step
        memory_us = 1e6 * op.weight_rows * op.k * self._workload.dtype.size_bytes / gpu.dram_bytes_per_s
        product_us = 2e6 * op.m * op.weight_rows * op.k / gpu.tensor_flops_per_s
        padding = num_rows * multiplied_rows(height.of_cta(tile), height.groups) * height.cluster_m / op.m
        columns = tile.n * op.rows_per_column
        step_us = crowding * max(memory_us, product_us * padding / tensor_share(columns))
        whole_us, task_us = (steps * step_us + TASK_US for steps in (all_steps, ceil(all_steps / parts)))
        sum_us = 0.0
        if parts > 1:
            slot_us = height.of_cta(tile).m * columns * SUM_BYTES / L2_BYTES_PER_CLOCK / gpu.clock_mhz
            is_read = bool(self._workload.consumers_of(self._workload.ops.index(op)))
            sum_us = (READ_PART_US if is_read else PART_US) + (1 + parts) * slot_us
        rate = max(memory_us, product_us) / (num_whole * whole_us + num_parted * task_us + sum_us)
        has_tail, num_tasks = parts > 1 and num_whole > 0, num_tiles(op, tile) * parts
        return Cut(tile=tile, parts=parts, has_tail=has_tail, rate=rate, num_tasks=num_tasks, task_us=task_us + sum_us)

    def _parts(self, op: GemmOp, tile: Tile, cluster_m: int) -> tuple[int, ...]:
        """Numbers of parts of a tile: with more than one all tasks still run at once, or at few rows in two waves, so
        that the second reads what the first wave of the op before it has written last. Of tiles that fill more than a
        wave the tail is split, into the parts that make it shortest, if any do."""
        num_lanes, count = self._gpu.num_clusters(cluster_m), num_tiles(op, tile)
        most = num_steps(op, tile) // MIN_STEPS_PER_PART
        if self._rows > FEW_ROWS and count > num_lanes:
            possible = [parts for parts in PARTS if parts == 1 or parts <= most]
            best = min(possible, key=lambda parts: waves(count, parts, num_lanes)[1] / parts)
            return (1, best) if best > 1 else (1,)
        at_once = num_lanes * (2 if self._rows <= FEW_ROWS else 1) // count
        return tuple(parts for parts in PARTS if parts == 1 or parts <= min(most, at_once))

    def _with_rings(self, cuts: tuple[Cut, ...], height: Height) -> Iterator[Tiling]:
        """Rings as deep as fits and about two thirds of it, without and with a window."""
        parts = tuple(cut.parts for cut in cuts)
        bare = Tiling(
            engine=Engine.WGMMA,
            tiles=tuple(cut.tile for cut in cuts),
            num_stages=2,
            num_warps=height.num_warps,
            split_k=parts if max(parts) > 1 else (),
            cluster_m=height.cluster_m,
            warpgroups=height.warpgroups,
        )
        for rings in dict.fromkeys(self._rings(bare)):
            tiling = replace(bare, num_stages=rings[0], input_stages=rings[1], window=rings[2])
            if tiling_problem(self._workload, self._gpu, tiling) is None:
                yield tiling

    def _rings(self, bare: Tiling) -> Iterator[tuple[int, int, int]]:
        """(stages of weights, stages of inputs, window)."""
        each = stage_bytes(self._workload, bare)[1]
        for input_stages in INPUT_STAGES if self._rows <= FEW_ROWS else (0,):
            most = self._deepest(replace(bare, input_stages=input_stages), is_equal=not input_stages)
            for num_stages in (most, round(most * 2 / 3)):
                for window in (0, *(round(size / each) for size in WINDOW_BYTES)):
                    if window < num_stages:
                        yield num_stages, input_stages or min(num_stages, MAX_INPUT_STAGES), window

    def _deepest(self, tiling: Tiling, *, is_equal: bool) -> int:
        """The most stages of weights that fit, beside the inputs' ring or with one as deep."""
        fixed = smem_bytes(self._workload, replace(tiling, num_stages=0))
        each = smem_bytes(self._workload, replace(tiling, num_stages=1, input_stages=tiling.input_stages + is_equal))
        return min(MAX_STAGES, max(0, self._gpu.smem_per_cta_bytes - fixed) // (each - fixed))

    def _fitted(self, tiling: Tiling) -> Iterator[Tiling]:
        """The tiling, with as many stages of its ring of weights as fit; nothing where too few do."""
        num_stages = min(tiling.num_stages, self._deepest(tiling, is_equal=False))
        if num_stages >= 2:
            yield replace(tiling, num_stages=num_stages, window=min(tiling.window, num_stages - 1))


def _covering(rows: int, most: Height) -> Height:
    """The lowest height that covers the rows in as many tiles as the highest does: the copy engine takes its time over
    rows that are not there, and so do the tensor cores."""
    block_rows = BLOCK_ROWS * most.groups * most.cluster_m
    step = WARP_ROWS * most.cluster_m if most.m <= block_rows else block_rows
    return replace(most, m=-(-rows // (-(-rows // most.m) * step)) * step)


def _by_rate(cuts: tuple[Cut, ...]) -> float:
    """Least where all ops are fast."""
    return -round(min(cut.rate for cut in cuts) + sum(cut.rate for cut in cuts), 3)


def _makespan_us(cuts: tuple[Cut, ...], lanes: int) -> float:
    """At least, of all ops' tasks on so many SMs or clusters."""
    num_waves = ceil(sum(cut.num_tasks for cut in cuts) / lanes)
    all_us = sum(cut.num_tasks * cut.task_us for cut in cuts)
    times_us = [cut.task_us for cut in cuts]
    return max(all_us / lanes, max(times_us), num_waves * min(times_us))


def _by_depth(op: GemmOp, cut: Cut, *, is_read: bool) -> tuple[float, ...]:
    """Greatest where stages are deep, after what matters more: whole tiles of what is read, wide ones of the rest."""
    first = cut.parts == 1 if is_read else cut.tile.n >= FEW_ROWS
    return first, round(cut.rate, 1), _stage_bytes(op, cut.tile), cut.rate


def _stage_bytes(op: GemmOp, tile: Tile) -> int:
    """A stage of weights."""
    return tile.n * op.rows_per_column * tile.k * 2


def _tiles(op: GemmOp, tile_m: int, tile_n: int) -> list[Tile]:
    """Depths that make stages of weights of a good size; where rows are too few for that, the deepest useful one.

    High tiles have stages of inputs that are as large as the weights', so they take the shallowest.
    """
    useful = [Tile(m=tile_m, n=tile_n, k=k) for k in STAGE_DEPTHS if k == STAGE_DEPTHS[0] or 2 * k <= op.k]
    if tile_m > FEW_ROWS:
        return useful[:1]
    fitting = [tile for tile in useful if _stage_bytes(op, tile) <= STAGE_BYTES[1]]
    return [tile for tile in fitting if _stage_bytes(op, tile) >= STAGE_BYTES[0]] or fitting[-1:]
