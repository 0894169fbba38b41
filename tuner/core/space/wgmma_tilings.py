"""Tilings of the wgmma engine that are worth trying on a workload and a GPU.

Tiles are as high as the rows need and shaped so that whole waves of SMs are filled. Stages have a size that keeps the
memory busy without many barriers, and the rings take the available shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter

from tuner.core.legal.legality import engine_problem, tiling_problem
from tuner.core.legal.sum_room import with_least_room, with_most_room
from tuner.core.legal.wgmma import (
    COLUMNS,
    MAX_INPUT_STAGES,
    MAX_PRODUCT_COLUMNS,
    MAX_STAGES,
    NUM_WARPS,
    rows_problem,
    smem_bytes,
    stage_bytes,
    stage_depths,
)
from tuner.core.plan.graph.products import weight_stage_bytes
from tuner.core.plan.order.split_k import num_tiles
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.core.space.combined import by_turns
from tuner.core.space.heights import (
    FEW_ROWS,
    HIGH_TILES,
    SHARED_TILE,
    Height,
    covering,
    few_sums_tiles,
    filling_tiles,
    has_equal_rings,
    has_few_sums,
    loading_together,
    sharing_heights,
    small_output_tiles,
)
from tuner.core.space.wgmma_tile_shapes import NARROWEST, TileShape, WgmmaTileShapes, by_rate, tiles_of

MAX_ROWS_OF_TILES_OF_64 = 256
#: A height with more tile rows and more tiles than these limits is not proposed if a taller tile gives fewer.
MAX_TILE_ROWS = 64
MAX_TILES = 4096
#: Depths of the ring of inputs if tiles are low; otherwise it is as deep as that of the weights.
INPUT_STAGES = (6, 4, 8)
#: Depths of the ring of inputs with which the ring of weights takes all remaining memory.
FULL_INPUT_STAGES = (4, 5, 6, 8)
#: Proposed limits, besides no limit, of the weights that a CTA has requested but not received, bytes. Later requests
#: queue behind them, including signals and the intermediate. These amounts already keep the memory busy.
WINDOW_BYTES = (98_304, 65_536)
#: CTAs that split a tile's K: proposed ones, and those around the best schedules. With swapped operands and more than a
#: few rows, they are proposed for two warpgroups, since one has sums for few columns, and sharing is for wide tiles.
SHARERS = (2,)
MORE_SHARERS = (2, 4)
SWAPPED_SHARERS_GROUPS = 2
#: Tilings that are tried before a model exists: without and with split tails, with CTAs that split K, and those of
#: gathered rows that are also tried with stages twice as deep.
NUM_GUESSES, NUM_TAIL_GUESSES = 4, 2
NUM_SHARING_GUESSES, NUM_DEEP = 2, 2
#: A ring of fewer stages leaves the memory idle between them: a different tile shape with as many stages as this is a
#: better first candidate.
ENOUGH_STAGES = 4
#: Minimum share of an op's busy SMs that wider tiles must keep busy.
BUSY_SHARE = 0.9
#: Maximum size of a small op's weights, relative to the capacity of all rings.
LARGEST_SMALL_OP = 1.5
#: For high tiles, how many of the best tile shapes per height are proposed with stores by the copy engine.
NUM_COPIED = 12
#: How many of an op's fastest tile shapes are near a tiling whose height no other op has.
NUM_NEAR = 12


class WgmmaTilings:
    """The proposed tilings; empty if the engine does not support the workload on the GPU."""

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        self._workload = workload
        self._gpu = gpu
        self._rows = max(op.m for op in workload.tile_ops)
        self._has_few_sums = has_few_sums(workload)
        self._shapes = WgmmaTileShapes(workload, gpu)
        #: By tile height, a tile shape for each op: the fastest first.
        self._combined = {height: self._shapes.combined(height) for height in self.heights} if self.is_there else {}
        self._of_own_heights = self._shapes.of_own_heights(self._combined)

    @property
    def is_there(self) -> bool:
        """Whether any tilings are proposed."""
        return engine_problem(self._workload, self._gpu, Engine.WGMMA) is None

    @property
    def heights(self) -> tuple[Height, ...]:
        """Heights that are worth trying, for one CTA or for several that split K."""
        alone = self._heights_alone
        groups = 1 if self._rows <= FEW_ROWS and not self._has_few_sums else SWAPPED_SHARERS_GROUPS
        wide = [one for one in alone if not one.swap_ab or one.groups == groups]
        return alone + sharing_heights(wide, MORE_SHARERS if small_output_tiles(self._workload, self._gpu) else SHARERS)

    @property
    def _heights_alone(self) -> tuple[Height, ...]:
        if self._rows <= FEW_ROWS:
            return tuple(dict.fromkeys(self._low_heights()))
        lowest = FEW_ROWS if self._rows <= MAX_ROWS_OF_TILES_OF_64 else FEW_ROWS + 1
        high = (one for one in HIGH_TILES if lowest <= one.m < 2 * self._rows or (one.swap_ab and self._rows <= one.m))
        useful = [one for one in high if self._has_few_tiles(one)]
        if self._rows <= SHARED_TILE.m:
            useful.insert(1, SHARED_TILE)
        useful = [*few_sums_tiles(self._workload), *filling_tiles(self._workload, self._gpu), *useful]
        covers = dict.fromkeys(covering(self._rows, most) for most in useful)
        fitting = tuple(
            one for one in covers if one.swap_ab or rows_problem(one.m // one.cluster_m, one.groups) is None
        )
        return fitting or HIGH_TILES[:1]

    def _has_few_tiles(self, most: Height) -> bool:
        """Whether a plan with these tiles is small: ops with few columns and many rows have many tile rows."""
        num_tiles = sum(-(-op.m // most.m) * -(-op.n // MAX_PRODUCT_COLUMNS) for op in self._workload.tile_ops)
        return -(-self._rows // most.m) <= MAX_TILE_ROWS or num_tiles <= MAX_TILES

    def _low_heights(self) -> Iterator[Height]:
        """Heights with one tile row; with more, if each tile still has its own SM: a CTA then loads fewer rows."""
        for most in (FEW_ROWS, FEW_ROWS // 2, FEW_ROWS // 4):
            height = covering(self._rows, Height(most, 4))
            num_tiles = sum(-(-op.m // height.m) * -(-op.n // NARROWEST) for op in self._workload.tile_ops)
            if height.m >= self._rows or num_tiles <= self._gpu.num_sms:
                yield height
                warps = NUM_WARPS if self._has_few_sums else NUM_WARPS[:1]
                yield from (covering(self._rows, Height(most, count, swap_ab=True)) for count in warps)

    def tilings(self) -> Iterator[Tiling]:
        """All proposed tilings, without duplicates; for each height, those that fill the SMs best first."""
        apart = [*self._in_two_waves(), *self._uneven()]
        yield from apart
        for height, combined in self._combined.items():
            for shapes in combined:
                yield from (tiling for tiling in self._with_rings(shapes, height) if tiling not in apart)
        for height, combined in self._combined.items():
            for shapes in combined[:NUM_COPIED] if height.m > FEW_ROWS else ():
                stored = self._with_rings(shapes, height, Epilogue.TMA)
                yield from islice(self._legal(stored), 1)

    def _legal(self, tilings: Iterable[Tiling]) -> Iterator[Tiling]:
        return (one for one in tilings if tiling_problem(self._workload, self._gpu, one) is None)

    def guesses(self) -> list[Tiling]:
        """Starting points: for each height in turn, the fastest tile shapes of different widths, with full rings; those
        in two waves; and the fastest that split K, with many rows only if that looks faster. They alternate, since a
        short search tries only the first ones, and this choice matters most. Ping-pong is one step away."""
        together = [height for height in self._combined if height.warpgroups is Warpgroups.COOPERATIVE]
        alone = [height for height in together if height.cluster_k == 1]
        whole, tails = (self._in_turn(alone, tails=tails) for tails in (False, True))
        best = {height: by_rate(self._combined[height][0]) for height in together if self._combined[height]}
        sharers = [height for height in best if height.cluster_k > 1]
        if self._rows > MAX_ROWS_OF_TILES_OF_64:
            sharers = [height for height in sharers if best[height] < best.get(replace(height, cluster_k=1), 0.0)]
        sharers.sort(key=lambda height: (-(-self._rows // height.m), best[height]))
        sharing = by_turns([list(islice(self._of_height(one, tails=False), NUM_GUESSES)) for one in sharers])
        few, others = whole[:NUM_GUESSES], whole[NUM_GUESSES : max(NUM_GUESSES, len(alone))]
        groups = (
            [*few, *self._widest(alone[:1])],
            [*self._deep_if_gathered(whole[:NUM_DEEP])],
            [*self._in_two_waves(), *self._uneven(1)],
            sharing[:NUM_SHARING_GUESSES],
        )
        return list(dict.fromkeys((*by_turns(groups), *others, *tails[:NUM_TAIL_GUESSES])))

    def _deep_if_gathered(self, alone: Iterable[Tiling]) -> Iterator[Tiling]:
        """High tilings with stages twice as deep, if rows are gathered: a step then costs much beside its products."""
        gathers = any(op.GATHERS for op in self._workload.tile_ops)
        for tiling in (one for one in alone if gathers and one.tiles[0].m > FEW_ROWS):
            deep = (one for one in self._legal(self.twice_as_deep(tiling)) if one.num_stages >= ENOUGH_STAGES)
            yield from islice(deep, 1)

    def _widest(self, heights: list[Height]) -> Iterator[Tiling]:
        """For many rows, the widest whole tiles of each height: they read least and need the least power."""
        for height in heights if self._rows > MAX_ROWS_OF_TILES_OF_64 else ():
            whole = [shapes for shapes in self._combined[height] if all(shape.parts == 1 for shape in shapes)]
            widest = max(whole, key=lambda shapes: sum(shape.reuse for shape in shapes), default=())
            yield from islice(self._with_rings(widest, height), 1)

    def _in_turn(self, heights: list[Height], *, tails: bool) -> list[Tiling]:
        """For each height, the fastest tile shape that no earlier tiling has. Swapped operands are left to later steps
        of the search; but a single op has few tile shapes, so each is proposed with both orders of operands."""
        is_lone = len(self._workload.tile_ops) == 1
        found: dict[object, Tiling] = {}
        for offered in [self._of_height(height, tails=tails) for height in heights] * NUM_GUESSES:
            ways = ((one if is_lone else (one.tiles, one.split_k), one) for one in offered)
            if fresh := next(((way, one) for way, one in ways if way not in found), None):
                found.setdefault(*fresh)
        return list(found.values())

    def _of_height(self, height: Height, *, tails: bool) -> Iterator[Tiling]:
        """One tiling for each combination of widths and parts, in which the tail of some op is split or of none;
        those whose rings hold enough stages first."""
        found: set[object] = set()
        shallow = list[Tiling]()
        for shapes in self._combined[height]:
            widths = tuple((shape.tile.n, shape.parts) for shape in shapes)
            if widths in found or any(shape.has_tail for shape in shapes) is not tails:
                continue
            if rings := [one for one in self._with_rings(shapes, height) if not one.window]:
                found.add(widths)
                if enough := next((one for one in rings if one.num_stages >= ENOUGH_STAGES), None):
                    yield enough
                else:
                    shallow.append(max(rings, key=lambda one: one.num_stages))
        yield from shallow

    def _in_two_waves(self) -> Iterator[Tiling]:
        """For few rows: two tasks of each op per SM, so half of the intermediate is ready when the second op begins."""
        if self._rows <= FEW_ROWS and self.is_there:
            for height in self._heights_alone[:2]:
                windowed = (one for one in self._with_rings(self._shapes.in_two_waves(height), height) if one.window)
                yield from islice(windowed, 1)

    def _uneven(self, most: int | None = None) -> Iterator[Tiling]:
        """For many rows: tiles as high for each op as suits it, if that looks faster; at most `most` of each way."""
        for height, shapes in self._of_own_heights.items():
            yield from islice(self._with_rings(shapes, height), most)

    def near(self, tiling: Tiling) -> Iterator[Tiling]:
        """Tilings that differ in one aspect: the height of the tiles together with the warpgroups that multiply them
        or the CTAs that split their K; how they are stored; the tile shape of one op, including its height; one
        number of the rings; or the depths of all ops. Rings become shorter if they would not fit."""
        alone = self._heights_alone
        in_turns = (one.in_turns for one in alone if one.groups == 1 and one.swap_ab == tiling.swap_ab)
        for height in dict.fromkeys((*alone, *in_turns, *sharing_heights(alone, MORE_SHARERS))):
            tiles = tuple(replace(tile, m=height.m) for tile in tiling.tiles)
            other = replace(tiling, tiles=tiles, cluster_n=1, **height.fields)
            if height.cluster_k > 1:
                other = replace(other, split_k=(), epilogue=Epilogue.DIRECT)
            yield from self._fitted(other)
        for epilogue in Epilogue:
            yield from self._fitted(replace(tiling, epilogue=epilogue))
        whole, dtype = tiling.split_k or (1,) * len(tiling.tiles), self._workload.dtype
        is_uneven = self._rows > FEW_ROWS and len({tile.m for tile in tiling.tiles}) > 1
        for index, (op, tile) in enumerate(zip(self._workload.tile_ops, tiling.tiles, strict=True)):
            who = (tiling.num_warps, tiling.cluster_m, tiling.warpgroups, tiling.swap_ab, tiling.cluster_k)
            own = Height(tile.m, *who)
            offered = [combined[index] for combined in self._combined.get(own, [])]
            if not offered and is_uneven:
                offered = self._shapes.all_shapes(op, own)[:NUM_NEAR]
            shapes = {(one.tile, one.parts) for one in offered}
            shapes |= {(deep, whole[index]) for deep in tiles_of(op, tile.m, tile.n, dtype, tiling.cluster_m)}
            shapes |= {(tile, parts) for parts in self._shapes.parts(op, tile, own)}
            shapes |= {(shape.tile, 1) for shape in self._of_other_heights(own, index)}
            for shape, parts in sorted(shapes, key=str):
                split = (*whole[:index], parts, *whole[index + 1 :])
                tiles = (*tiling.tiles[:index], shape, *tiling.tiles[index + 1 :])
                yield from self._fitted(replace(tiling, tiles=tiles, split_k=split if max(split) > 1 else ()))
        for num_stages in range(2, MAX_STAGES + 1):
            yield replace(tiling, num_stages=num_stages, window=min(tiling.window, num_stages - 1))
        yield from (replace(tiling, input_stages=stages) for stages in range(2, MAX_INPUT_STAGES + 1))
        for count in range(tiling.num_stages):
            yield from (replace(tiling, window=count), replace(tiling, ahead_window=count))
        for room in axes_of(Tiling)["sum_kib"].values if tiling.cluster_k > 1 else ():
            yield from self._fitted(replace(tiling, sum_kib=room))
        yield from self._fitted(self._deepened(tiling))
        yield from self.widened(tiling)
        yield from (*self.with_full_rings(tiling), *self.twice_as_deep(tiling))
        yield from islice(
            self._legal(chain.from_iterable(map(self._fitted, loading_together(self._workload, tiling)))), 1
        )

    def with_full_rings(self, tiling: Tiling) -> Iterator[Tiling]:
        """For a chain: the tiling with stages limited to each allowed depth, and with the deepest rings that then fit.
        A slot of a ring is as large as the largest stage of all ops: with one deep stage it holds fewer weights. Empty
        if all stages are equally deep and so are the rings of high tiles: they already suit all ops."""
        is_even = len({tile.k for tile in tiling.tiles}) == 1 and has_equal_rings(tiling)
        if self._workload.kind is not WorkloadKind.CHAIN or is_even:
            return
        deepest = max(tile.k for tile in tiling.tiles)
        for depth in (depth for depth in stage_depths(self._workload.dtype) if depth <= deepest):
            tiles = tuple(replace(tile, k=min(tile.k, depth)) for tile in tiling.tiles)
            for input_stages in FULL_INPUT_STAGES:
                yield from self._fitted(replace(tiling, tiles=tiles, num_stages=MAX_STAGES, input_stages=input_stages))

    def twice_as_deep(self, tiling: Tiling) -> Iterator[Tiling]:
        """For a chain: stages of all ops twice as deep and windows of the same bytes; empty if one cannot be. Equal
        rings of high tiles stay equal."""
        if self._workload.kind is not WorkloadKind.CHAIN:
            return
        depths, ops = stage_depths(self._workload.dtype), self._workload.tile_ops
        tiles = tuple(replace(tile, k=2 * tile.k) for tile in tiling.tiles)
        if all(tile.k in depths and 2 * tile.k <= op.k for op, tile in zip(ops, tiles, strict=True)):
            window, ahead = (-(-stages // 2) for stages in (tiling.window, tiling.ahead_window))
            deep = replace(tiling, tiles=tiles, window=window, ahead_window=ahead)
            equal = ((MAX_INPUT_STAGES, MAX_INPUT_STAGES),) if has_equal_rings(tiling) else ()
            for stages, input_stages in equal or ((MAX_STAGES, inputs) for inputs in FULL_INPUT_STAGES):
                yield from self._fitted(replace(deep, num_stages=stages, input_stages=input_stages))

    def widened(self, tiling: Tiling) -> Iterator[Tiling]:
        """For a chain: the tiling with the tiles of small ops as wide as a slot of the ring allows, in parts that
        keep about as many SMs busy. Then the ring holds nearly all of their weights, which arrive before they begin;
        it is empty if the ring already holds them."""
        if self._workload.kind is not WorkloadKind.CHAIN:
            return
        dtype, slot = self._workload.dtype, stage_bytes(self._workload, tiling)[1]
        who = (tiling.num_warps, tiling.cluster_m, tiling.warpgroups, tiling.swap_ab, tiling.cluster_k)
        lanes = self._gpu.num_clusters(tiling.cluster_size)
        held = LARGEST_SMALL_OP * tiling.num_stages * slot * lanes

        def widest(op: TileOp, tile: Tile, parts: int) -> tuple[Tile, int]:
            width = slot // weight_stage_bytes(op, replace(tile, n=1), dtype)
            busy, is_small = BUSY_SHARE * num_tiles(op, tile) * parts, op.weight_bytes(dtype) <= held
            for n in range(width - width % COLUMNS, tile.n, -COLUMNS) if is_small else ():
                count = num_tiles(op, wide := replace(tile, n=n))
                at_once = [most for most in self._shapes.parts(op, wide, Height(tile.m, *who)) if count * most <= lanes]
                if op.n % n == 0 and count * max(at_once, default=0) >= busy:
                    return wide, max(at_once)
            return tile, parts

        split = tiling.split_k or (1,) * len(tiling.tiles)
        tiles, parts = zip(*map(widest, self._workload.tile_ops, tiling.tiles, split), strict=True)
        wide = replace(tiling, tiles=tiles, split_k=parts if max(parts) > 1 else ())
        if wide != tiling:
            yield from self._fitted(wide)

    def _of_other_heights(self, own: Height, index: int) -> Iterator[TileShape]:
        """For an op with the same warps and CTAs: the fastest and the widest whole tile of each other height."""
        for height in self._combined:
            if height.fields == own.fields and height.m != own.m:
                whole = [shapes[index] for shapes in self._combined[height] if shapes[index].parts == 1]
                yield from {max(whole, key=attrgetter("rate")), max(whole, key=attrgetter("reuse"))} if whole else ()

    def _with_rings(
        self, shapes: tuple[TileShape, ...], height: Height, epilogue: Epilogue = Epilogue.DIRECT
    ) -> Iterator[Tiling]:
        """Tilings with rings as deep as fits, and about two thirds as deep, with and without a window."""
        if not shapes:
            return
        parts = tuple(shape.parts for shape in shapes)
        bare = Tiling(
            engine=Engine.WGMMA,
            tiles=tuple(shape.tile for shape in shapes),
            num_stages=2,
            split_k=parts if max(parts) > 1 else (),
            epilogue=epilogue,
            **height.fields,
        )
        for rings in dict.fromkeys(self._rings(bare)):
            tiling = bare.but(num_stages=rings[0], input_stages=rings[1], window=rings[2])
            tiling = with_most_room(self._workload, self._gpu, tiling)
            if tiling_problem(self._workload, self._gpu, tiling) is None:
                yield tiling

    def _rings(self, bare: Tiling) -> Iterator[tuple[int, int, int]]:
        """(stages of weights, stages of inputs, window)."""
        each = stage_bytes(self._workload, bare)[1]
        for input_stages in INPUT_STAGES if self._rows <= FEW_ROWS else (0,):
            most = self._deepest(bare.but(input_stages=input_stages), is_equal=not input_stages)
            for num_stages in (most, round(most * 2 / 3)):
                for window in (0, *(round(size / each) for size in WINDOW_BYTES)):
                    if window < num_stages:
                        yield num_stages, input_stages or min(num_stages, MAX_INPUT_STAGES), window

    def _deepest(self, tiling: Tiling, *, is_equal: bool) -> int:
        """The most stages of weights that fit, with the given ring of inputs or with an equally deep one."""
        fixed = smem_bytes(self._workload, tiling.but(num_stages=0))
        each = smem_bytes(self._workload, tiling.but(num_stages=1, input_stages=tiling.input_stages + is_equal))
        return min(MAX_STAGES, max(0, self._gpu.smem_per_cta_bytes - fixed) // (each - fixed))

    def _fitted(self, tiling: Tiling) -> Iterator[Tiling]:
        """The tiling with as many stages of weights as fit, and as many of inputs if both rings were equally deep;
        empty if too few do."""
        tiling = with_least_room(self._workload, tiling)
        is_equal = tiling.num_stages == tiling.input_stages
        fixed = replace(tiling, input_stages=0) if is_equal else tiling
        num_stages = min(tiling.num_stages, self._deepest(fixed, is_equal=is_equal))
        if num_stages >= 2:
            input_stages = num_stages if is_equal else tiling.input_stages
            window, ahead = (min(count, num_stages - 1) for count in (tiling.window, tiling.ahead_window))
            fitted = replace(tiling, num_stages=num_stages, input_stages=input_stages)
            yield replace(fitted, window=window, ahead_window=ahead)

    def _deepened(self, tiling: Tiling) -> Tiling:
        """The tiling with each op's stages as deep as a slot of the ring allows: then the ring holds as many bytes of
        small ops as of large ones."""
        dtype, slot = self._workload.dtype, stage_bytes(self._workload, tiling)[1]

        def deepest(op: TileOp, tile: Tile) -> Tile:
            fitting = (replace(tile, k=depth) for depth in stage_depths(dtype) if 2 * depth <= op.k)
            sizes = {one: weight_stage_bytes(op, one, dtype) // tiling.cluster_n for one in fitting}
            return max((one for one in (tile, *sizes) if sizes.get(one, 0) <= slot), key=lambda one: one.k)

        ops = zip(self._workload.tile_ops, tiling.tiles, strict=True)
        return replace(tiling, tiles=tuple(deepest(op, tile) for op, tile in ops))
