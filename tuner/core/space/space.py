"""The space of a workload on a GPU: the proposed values on each axis, and every legal combination of them.

`tuner.core.legal` defines what is legal; this module defines what is worth trying. Legal schedules with other values
must be requested, and some are neighbours of proposed ones (e.g. unequal tile heights).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, product
from typing import Self

from tuner.core.legal.legality import (
    accepted,
    check_schedule,
    dynamic_smem_bytes,
    estimated_resources,
    grid_problem,
    tiles_problem,
    workload_problem,
)
from tuner.core.legal.ordering_rules import (
    RUN_AHEADS,
    assignment_problem,
    interleave_problem,
    position_problem,
    raster_problem,
    run_ahead_problem,
    sync_problem,
)
from tuner.core.legal.split_rules import part_order_problem, split_order_problem, split_tiles_problem
from tuner.core.legal.wgmma import STARTUP_PREFETCHES
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph
from tuner.core.plan.order.interleaves import block_shapes, longest_first, merge_blocks
from tuner.core.plan.order.split_k import num_split_tiles, num_tiles, slots_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import near
from tuner.core.schedule.cache_hints import without_hints
from tuner.core.schedule.levels import TileOpSchedule, schedule_class
from tuner.core.schedule.ordering import Granularity, Interleave, Ordering, Raster, SplitOrder, SplitTiles, WaitPosition
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Tile, Tiling
from tuner.core.space.mma_tilings import MmaTilings
from tuner.core.space.ordering_values import ASSIGNMENTS, GRIDS, INTERLEAVES, RASTERS, SYNCS, near_run_starts
from tuner.core.space.orderings import Choices, GridAssignment, Merge, Orderings
from tuner.core.space.part_guesses import scattered, settled_sums
from tuner.core.space.simt_tilings import SimtTilings
from tuner.core.space.wgmma_tilings import WgmmaTilings
from tuner.errors import IllegalSchedule

__all__ = ["Space", "check_schedule", "dynamic_smem_bytes", "estimated_resources", "space_of"]

#: One in `SPARE_SMS` SMs may be left free so that each task of an op gets its own CTA.
SPARE_SMS = 8


class Space:
    """Every legal schedule of a workload's tile ops made from the proposed values; launch ops are not included.

    Raises:
        IllegalSchedule: none is legal on the GPU.
    """

    #: The spaces of launch ops: it has none.
    own: tuple[()] = ()
    #: Proposed percentages of a ring that weights fill ahead of a wait, the default first.
    run_aheads: tuple[int, ...] = RUN_AHEADS

    def __init__(self, workload: Workload, gpu: Gpu) -> None:
        if problem := workload_problem(workload, gpu):
            raise IllegalSchedule(problem)
        self.workload = workload
        self.gpu = gpu
        self._mma = MmaTilings(workload, gpu)
        self._wgmma = WgmmaTilings(workload, gpu)
        self._simt = SimtTilings(workload, gpu)
        self._orderings: dict[Tiling, Orderings] = {}
        self._merges: dict[object, tuple[Merge, ...]] = {}
        self._assignments: dict[object, tuple[GridAssignment, ...]] = {}
        self._tails: dict[object, tuple[GridAssignment, ...]] = {}
        self._slices: dict[object, frozenset[tuple[Granularity, int]]] = {}

    @property
    def tiles(self) -> Self:
        """The space of only the tile ops."""
        return self

    @cached_property
    def tilings(self) -> tuple[Tiling, ...]:
        """All legal tilings of the proposed values, engine by engine."""
        return tuple(self._listed())

    @cached_property
    def is_empty(self) -> bool:
        """Whether no schedule of the proposed values is legal. Lists tilings only until one has a legal ordering."""
        return not any(self.orderings(tiling) for tiling in self._listed())

    def _listed(self) -> Iterator[Tiling]:
        return self._mma.combined(
            self._accepted(self._mma.tilings()), self._accepted(self._wgmma.tilings(), self._simt.tilings())
        )

    def _accepted(self, *tilings: Iterable[Tiling]) -> Iterator[Tiling]:
        return accepted(self.workload, self.gpu, chain(*tilings), self._of_kinds)

    @cached_property
    def guesses(self) -> list[Tiling]:
        """Calculated tilings to start with: those that fill the GPU. Those of `mma` if no other engine has any."""
        return [*self._accepted(self._simt.guesses(), self._wgmma.guesses())] or [*self._accepted(self._mma.guesses())]

    def with_full_rings(self, tiling: Tiling) -> list[Tiling]:
        """For a chain: a tiling with stages limited to each depth, and the deepest rings that fit, if it has two."""
        return [*self._accepted(self._wgmma.with_full_rings(tiling))] if tiling.engine is Engine.WGMMA else []

    def twice_as_deep(self, tiling: Tiling) -> list[Tiling]:
        """For a chain: a tiling with stages of all ops twice as deep, if its engine has two rings."""
        return [*self._accepted(self._wgmma.twice_as_deep(tiling))] if tiling.engine is Engine.WGMMA else []

    def widened(self, tiling: Tiling) -> list[Tiling]:
        """For a chain: a tiling with tiles of small ops as wide as a slot of a wgmma ring; none or one."""
        return [*self._accepted(self._wgmma.widened(tiling))] if tiling.engine is Engine.WGMMA else []

    def made(self, tiling: Tiling, ordering: Ordering) -> Schedule:
        """Tiling and ordering as one schedule, with defaults for axes that only a kind of op has."""
        return Schedule.of(tiling, ordering, before=self._of_kinds)

    @cached_property
    def _of_kinds(self) -> tuple[TileOpSchedule, ...]:
        """For each op, the choices that only its kind knows; empty if no kind has any."""
        classes = [schedule_class(op.KIND) or TileOpSchedule for op in self.workload.tile_ops]
        if all(one is TileOpSchedule for one in classes):
            return ()
        made = (one(tile=Tile(m=1, n=1, k=1)) for one in classes)  # type: ignore[call-arg]
        return tuple(one for one in made if isinstance(one, TileOpSchedule))

    def orderings(self, tiling: Tiling) -> Orderings:
        """All legal orderings of a tiling, from the proposed values. Cached, since a search draws repeatedly."""
        found = self._orderings.get(tiling)
        if found is None:
            found = self._orderings[tiling] = self._orderings_of(tiling)
        return found

    def _orderings_of(self, tiling: Tiling) -> Orderings:
        graph = tile_graph(self.workload, tiling)
        resources = estimated_resources(self.workload, tiling)
        grids = tuple(
            (ctas, reserved)
            for ctas, reserved in self.grids(graph)
            if ctas >= tiling.resident_ctas
            and grid_problem(graph.num_tasks, resources, self.gpu, ctas, reserved) is None
        )
        sizes = tuple(map(graph.num_tasks_of, graph.op_indices))
        if (key := (sizes, grids, tiling.cluster_size)) not in self._assignments:
            self._assignments[key] = tuple(self._legal_assignments(graph, grids))
        run_aheads = tuple(value for value in self.run_aheads if run_ahead_problem(graph, value) is None)
        slices = {order: self._sliced_syncs(graph, order) for order in SplitOrder}
        choices = []
        for merge, split_tiles in product(self._merges_of(graph), self.split_tiles(tiling)):
            is_tail, is_stream = split_tiles is not SplitTiles.ALL, split_tiles is SplitTiles.STREAM
            is_plain = is_tail or part_order_problem(graph, merge.interleave) is not None
            assignments = self._assignments[key]
            if is_tail:
                assignments = self._tail_assignments(graph, merge.interleave, split_tiles, assignments)
            choices.append(
                Choices(
                    merge=merge,
                    syncs=(
                        *((*sync, WaitPosition.TASK, SplitOrder.CONTIGUOUS) for sync in merge.syncs),
                        *(
                            (*sync, WaitPosition.SLICE, order)
                            for order in ((SplitOrder.CONTIGUOUS,) if is_stream else SplitOrder)
                            for sync in merge.syncs
                            if sync in slices[order]
                        ),
                    ),
                    run_aheads=run_aheads,
                    assignments=assignments,
                    sweeps=(False,) if is_plain else (False, True),
                    split_tiles=split_tiles,
                )
            )
        return Orderings(tuple(choice for choice in choices if choice.assignments))

    def split_tiles(self, tiling: Tiling) -> tuple[SplitTiles, ...]:
        """Which tiles are proposed for splitting, the more promising first. The tail, if the tiles of an op with
        parts fill more than a wave. For independent ops also less than a wave, by even shares."""
        num_lanes = self.gpu.num_clusters(tiling.cluster_size)
        shapes = enumerate(zip(self.workload.tile_ops, tiling.tiles, strict=True))
        split = (num_tiles(op, tile) for index, (op, tile) in shapes if tiling.num_parts(index) > 1)
        if (most := max(split, default=0)) <= num_lanes:
            is_shared = most > 0 and self.workload.is_independent
            return (SplitTiles.ALL, SplitTiles.STREAM) if is_shared else (SplitTiles.ALL,)
        fits = slots_problem(self.workload, tiling, num_split_tiles(self.workload, tiling)) is None
        tails = (SplitTiles.TAIL, SplitTiles.STREAM)
        return (*tails, SplitTiles.ALL) if fits else tails

    def _tail_assignments(
        self, graph: TileGraph, interleave: Interleave, split_tiles: SplitTiles, assignments: tuple[GridAssignment, ...]
    ) -> tuple[GridAssignment, ...]:
        """The assignments with a tail that can be split as `split_tiles` says."""
        tiling = graph.tiling
        shapes = tuple((tile.m, tile.n, tile.k * (split_tiles is SplitTiles.STREAM)) for tile in tiling.tiles)
        key = (shapes, tiling.split_k, interleave, split_tiles, assignments)
        if key not in self._tails:
            self._tails[key] = tuple(self._legal_tail_assignments(graph, interleave, split_tiles, assignments))
        return self._tails[key]

    def _legal_tail_assignments(
        self, graph: TileGraph, interleave: Interleave, split_tiles: SplitTiles, assignments: tuple[GridAssignment, ...]
    ) -> Iterator[GridAssignment]:
        for one in assignments:
            assignment, ctas, reserved = one
            ordering = Ordering(rasters=(), interleave=interleave, assignment=assignment, split_tiles=split_tiles)
            num_ctas = min(graph.num_tasks, ctas * self.gpu.num_clusters(graph.tiling.cluster_size, reserved))
            if split_tiles_problem(graph, ordering, num_ctas) is None:
                yield one

    def grids(self, graph: TileGraph) -> tuple[tuple[int, int], ...]:
        """(CTAs per SM, reserved SMs): the usual ones, and those that give every task of an op its own CTA."""
        spare = (self.gpu.num_sms - graph.tiling.cluster_size * graph.num_tasks_of(op) for op in graph.op_indices)
        return tuple(dict.fromkeys((*GRIDS, *((1, sms) for sms in spare if 0 < sms <= self.gpu.num_sms // SPARE_SMS))))

    def _legal_assignments(self, graph: TileGraph, grids: tuple[tuple[int, int], ...]) -> Iterator[GridAssignment]:
        for assignment, (ctas, reserved) in product(ASSIGNMENTS, grids):
            num_ctas = min(graph.num_tasks, ctas * self.gpu.num_clusters(graph.tiling.cluster_size, reserved))
            if assignment_problem(graph, Interleave(), assignment, 0, num_ctas) is None:
                yield assignment, ctas, reserved

    def _merges_of(self, graph: TileGraph) -> tuple[Merge, ...]:
        """The legal interleaves for the graph's tiles."""
        tiles, ops = graph.tiling.tiles, graph.op_indices
        key = (tuple((tile.m, tile.n) for tile in tiles), longest_first(self.workload, tiles, ops))
        if key not in self._merges:
            merges = []
            for interleave in INTERLEAVES:
                if interleave_problem(self.workload, tiles, interleave) is not None:
                    continue
                blocks = merge_blocks(self.workload, tiles, ops, interleave)
                rasters = tuple(_rasters(block_shapes(blocks, op)) for op in ops)
                syncs = tuple(sync for sync in SYNCS if sync_problem(graph, interleave, *sync) is None)
                merges.append(Merge(interleave=interleave, rasters=rasters, syncs=syncs))
            self._merges[key] = tuple(merges)
        return self._merges[key]

    def _sliced_syncs(self, graph: TileGraph, order: SplitOrder) -> frozenset[tuple[Granularity, int]]:
        """The signals that a task can wait for by slice if its tile's parts take their k-steps in `order`."""
        tiling = graph.tiling
        key = (order, *((tile.n, tile.k, tiling.num_parts(op)) for op, tile in enumerate(tiling.tiles)))
        if key not in self._slices:
            ordered = graph.with_parts(strided=order is SplitOrder.STRIDED)
            syncs = SYNCS if split_order_problem(graph, order) is None else ()
            legal = (sync for sync in syncs if position_problem(ordered, *sync, WaitPosition.SLICE) is None)
            self._slices[key] = frozenset(legal)
        return self._slices[key]

    @cached_property
    def num_schedules(self) -> int:
        """Legal schedules of the offered values."""
        return sum(len(self.orderings(tiling)) for tiling in self.tilings)

    def __iter__(self) -> Iterator[Schedule]:
        for tiling in self.tilings:
            for ordering in self.orderings(tiling):
                yield self.made(tiling, ordering)

    def sample(self, rng: random.Random, count: int) -> list[Schedule]:
        """`count` different legal schedules, or all if there are fewer: the engines alternate, and and all
        tilings of an engine have a turn before any of them has a second one."""
        by_engine = [[t for t in self.tilings if t.engine is engine] for engine in Engine]
        turns = [self._draw(rng, tilings) for tilings in by_engine if tilings]
        drawn: list[Schedule] = []
        while turns and len(drawn) < count:
            given = [(turn, schedule) for turn in turns[: count - len(drawn)] if (schedule := next(turn, None))]
            drawn += [schedule for _, schedule in given]
            turns = [turn for turn, _ in given]
        return drawn

    def _draw(self, rng: random.Random, tilings: list[Tiling]) -> Iterator[Schedule]:
        """All schedules of the tilings, in random order, generated on demand."""
        rng.shuffle(tilings)
        taken: dict[Tiling, set[int]] = {}
        while tilings:
            left = []
            for tiling in tilings:
                orderings, seen = self.orderings(tiling), taken.setdefault(tiling, set())
                yield self.made(tiling, orderings[orderings.draw_unseen(rng, seen)])
                if len(seen) < len(orderings):
                    left.append(tiling)
            tilings = left

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """The legal schedules that differ from `schedule` in one axis. Some axes change together: CTAs per SM and the
        registers that they are compiled for; the parts of tiles and which tiles are split; what a task waits for and
        where, since a finer signal or a later wait gains nothing alone; in-band reads and where tasks wait."""
        candidates = [
            schedule.but(tiling=tiling, ordering=replace(schedule.ordering, split_tiles=split_tiles))
            for tiling in self._near(schedule.tiling)
            for split_tiles in dict.fromkeys((schedule.ordering.split_tiles, self.split_tiles(tiling)[0]))
        ]
        candidates += [schedule.but(ordering=ordering) for ordering in self._reordered(schedule)]
        candidates += [
            schedule.but(
                tiling=replace(schedule.tiling, resident_ctas=resident),
                ordering=replace(schedule.ordering, ctas_per_sm=ctas),
            )
            for resident, ctas in ((1, 1), (1, 2), (2, 2))
        ]
        candidates += [read_in_band(schedule), placed_together(schedule), scattered(schedule)]
        if schedule.tiling.in_band:
            candidates.append(schedule.but(tiling=replace(schedule.tiling, in_band=False)))
        candidates += [schedule.but(tiling=tiling) for tiling in near(schedule.tiling)]
        candidates += [schedule.but(ordering=ordering) for ordering in near(schedule.ordering)]
        candidates += [
            replace(schedule, ops=(*schedule.ops[:index], op, *schedule.ops[index + 1 :]))
            for index, one in enumerate(schedule.ops)
            for op in near(one)
        ]
        others = (candidate for candidate in dict.fromkeys(candidates) if candidate != schedule)
        return [candidate for candidate in others if self.is_legal(candidate)]

    def is_legal(self, schedule: Schedule) -> bool:
        """Whether the schedule is legal, proposed or not."""
        return tiles_problem(self.workload, self.gpu, schedule) is None

    def as_offered(self, tiling: Tiling) -> Tiling:
        """The tiling without settings that are legal but not proposed for its engine."""
        return without_hints(tiling)

    def _near(self, tiling: Tiling) -> Iterator[Tiling]:
        """Tilings that differ in one aspect. Hints of `wgmma` are not included: they gain nothing, and leave the L2
        in a state that slows down the next measurement by up to 3 % (docs/findings/README.md)."""
        if tiling.engine is not Engine.WGMMA:
            yield from (replace(tiling, weight_hint=hint) for hint in CacheHint)
            yield from (replace(tiling, intermediate_hint=hint) for hint in CacheHint)
        else:
            yield from (replace(tiling, startup_prefetch=stages) for stages in STARTUP_PREFETCHES)
        of_engine: dict[Engine, MmaTilings | WgmmaTilings | SimtTilings] = {
            Engine.MMA: self._mma,
            Engine.WGMMA: self._wgmma,
            Engine.SIMT: self._simt,
        }
        yield from (settled_sums(self.workload, one) for one in of_engine[tiling.engine].near(tiling))

    def _reordered(self, schedule: Schedule) -> Iterator[Ordering]:
        ordering = schedule.ordering
        for op, raster in product(range(len(ordering.rasters)), RASTERS):
            rasters = (*ordering.rasters[:op], raster, *ordering.rasters[op + 1 :])
            yield replace(ordering, rasters=rasters)
        yield from (replace(ordering, interleave=interleave) for interleave in INTERLEAVES)
        for position in WaitPosition:
            waiting = replace(ordering, wait_position=position)
            yield waiting
            yield from (replace(waiting, granularity=sync, sync_width=width) for sync, width in SYNCS)
        yield from (replace(ordering, run_ahead=percent) for percent in self.run_aheads)
        yield replace(ordering, part_major=not ordering.part_major)
        yield from (replace(ordering, split_order=order) for order in SplitOrder)
        yield from (replace(ordering, split_tiles=split_tiles) for split_tiles in SplitTiles)
        yield from (replace(ordering, assignment=assignment, partition=0) for assignment in ASSIGNMENTS)
        ctas, reserved = zip(*self.grids(tile_graph(self.workload, schedule.tiling)), strict=True)
        yield from (replace(ordering, ctas_per_sm=value) for value in sorted(set(ctas)))
        yield from (replace(ordering, reserved_sms=value) for value in sorted(set(reserved)))
        if starts := ordering.run_starts:
            others = near_run_starts(len(ordering.rasters), starts, self.workload.forced_starts)
            yield from (replace(ordering, run_starts=other) for other in others)


def read_in_band(schedule: Schedule) -> Schedule:
    """The schedule with in-band reads of intermediates; legal at few rows."""
    tiling = replace(schedule.tiling, in_band=True)
    return schedule.but(
        tiling=tiling, ordering=replace(schedule.ordering, wait_position=WaitPosition.TASK, run_ahead=100)
    )


def placed_together(schedule: Schedule) -> Schedule:
    """The schedule with every two neighbouring CTAs placed together: SMs are then reserved in pairs."""
    reserved = schedule.ordering.reserved_sms + schedule.ordering.reserved_sms % 2
    tiling = replace(schedule.tiling, neighbours=2)
    return schedule.but(tiling=tiling, ordering=replace(schedule.ordering, reserved_sms=reserved))


@lru_cache(maxsize=2)  # after a long search, a space takes 100 MB
def space_of(workload: Workload, gpu: Gpu) -> Space:
    """The space, shared by all callers: listing its tilings takes a second, and jobs for one problem often follow each
    other. Only its caches change.

    Raises:
        IllegalSchedule: none is legal on the GPU.
    """
    return Space(workload, gpu)


@lru_cache(maxsize=4096)
def _rasters(shapes: frozenset[tuple[int, int]]) -> tuple[Raster, ...]:
    """The proposed rasters that are legal on blocks of the given shapes."""
    return tuple(raster for raster in RASTERS if raster_problem(raster, shapes, "") is None)
