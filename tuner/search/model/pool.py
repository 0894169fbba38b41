"""The pool: untried legal schedules, drawn from the whole space and from the neighbourhood of the best."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from tuner.core.schedule.ordering import Assignment, Granularity, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import PartSums, Tiling
from tuner.core.space.joint import AnySpace, JointSpace
from tuner.core.space.ordering_values import RunStarts, run_starts_of
from tuner.search.launch_op import search_of
from tuner.search.meanwhile import Begin
from tuner.search.model.axes import Features, ordering_features, tiling_features

#: Number of schedules drawn from the whole space; a smaller space is in the pool completely.
NUM_DRAWN = 800
#: Maximum number of neighbours of the best that are added.
NUM_NEAR = 400


def canonical(kind: PlanKind, schedule: Schedule) -> Schedule:
    """The schedule without choices that are irrelevant for `kind`: separate launches do not interleave, pass nothing in
    band, and wait for each other's tiles only on two streams, from queues. With two streams, CTAs are not placed
    together. Only runs have a cut."""
    if kind.is_in_runs or not schedule.tiling.tiles:
        return schedule
    tiling, ordering = schedule.tiling, schedule.ordering
    if ordering.run_starts:
        ordering = replace(ordering, run_starts=())
    if not kind.is_fused:
        ordering = replace(ordering, interleave=ordering.interleave.apart, partition=0)
        if tiling.in_band:
            tiling = replace(tiling, in_band=False)
        if not kind.is_side_by_side:
            ordering = replace(
                ordering, granularity=Granularity.ROW, sync_width=1, wait_position=WaitPosition.TASK, run_ahead=100
            )
            if tiling.ahead_window:
                tiling = replace(tiling, ahead_window=0)
        else:
            if not ordering.assignment.is_static:
                ordering = replace(ordering, assignment=Assignment.STATIC)
            if tiling.neighbours > 1:
                tiling = replace(tiling, neighbours=1)
            if tiling.part_sums is PartSums.SCATTERED:
                tiling = replace(tiling, part_sums=PartSums.LAST)
    is_same = tiling is schedule.tiling and ordering is schedule.ordering
    return schedule if is_same else schedule.but(tiling=tiling, ordering=ordering)


def in_runs(schedule: Schedule, starts: RunStarts) -> Schedule:
    """The schedule with later runs beginning at the ops `starts`."""
    return schedule.but(ordering=replace(schedule.ordering, run_starts=starts)) if starts else schedule


def _all_if_few(space: AnySpace) -> list[Schedule] | None:
    """All schedules of a space with at most `NUM_DRAWN`; None for a larger one, whose schedules are only counted: to
    make so many takes a third of a small job's processor time."""
    tiles, num_left = space.tiles if isinstance(space, JointSpace) else space, NUM_DRAWN
    if tiles is not None:
        for tiling in tiles.tilings:
            num_left -= len(tiles.orderings(tiling))
            if num_left < 0:
                return None
    whole = list(islice(space, NUM_DRAWN + 1))
    return whole if len(whole) <= NUM_DRAWN else None


class Pool:
    """The source of the candidates of one plan kind; the same `seed` gives the same schedules."""

    def __init__(self, space: AnySpace, kind: PlanKind, seed: int) -> None:
        self._space = space
        self._kind = kind
        self._seed = seed
        self._tilings: dict[Tiling, list[float]] = {}
        self._neighbours: dict[Schedule, list[Schedule]] = {}
        #: Draws made in advance, by period.
        self._ahead: dict[int, list[Schedule]] = {}
        #: The functions that return the draws of periods which another process draws, by period.
        self._elsewhere: dict[int, Callable[[], list[Schedule]]] = {}
        self._whole = _all_if_few(space)
        #: The ways to cut the ops into runs, for the kind that has runs.
        self._run_starts = (
            run_starts_of(len(space.workload.tile_ops), space.workload.forced_starts) if kind.is_in_runs else ()
        )

    def drawn(self, period: int) -> list[Schedule]:
        """Schedules from the whole space, different ones in each period."""
        if self._whole is not None:
            all_starts = self._run_starts or ((),)
            return self._plain(in_runs(schedule, starts) for schedule in self._whole for starts in all_starts)
        return self._ahead.pop(period, None) or self._elsewhere.pop(period, partial(self.draw, period))()

    def draw_ahead(self, period: int) -> bool:
        """Draws the schedules of a period, unless already done; returns whether there was anything to do."""
        if self._whole is not None or period in self._ahead or period in self._elsewhere:
            return False
        self._ahead = {period: self.draw(period)}
        return True

    def take_draws(self, draws: Mapping[int, Callable[[], list[Schedule]]]) -> None:
        """Makes the pool use draws of another process for the periods of `draws`."""
        self._elsewhere.update(draws)

    @property
    def is_drawn(self) -> bool:
        """Whether the space is too large to be in the pool completely."""
        return self._whole is None

    def draw(self, period: int) -> list[Schedule]:
        """The draw of a period, independent of earlier draws."""
        rng = random.Random(f"{self._seed}/{self._kind}/{period}")
        drawn = self._space.sample(rng, NUM_DRAWN)
        if self._run_starts:
            drawn = [in_runs(schedule, rng.choice(self._run_starts)) for schedule in drawn]
        return self._plain(drawn)

    def near(self, best: Iterable[Schedule]) -> list[Schedule]:
        """Neighbours of `best`, those of the first one first."""
        if self._whole is not None:
            return []
        return self._plain(islice((near for one in best for near in self._neighbours_of(one)), NUM_NEAR))

    def _neighbours_of(self, schedule: Schedule) -> list[Schedule]:
        """The schedule's neighbours, cached, since the best schedules change rarely."""
        if schedule not in self._neighbours:
            self._neighbours[schedule] = self._space.neighbours(schedule)
        return self._neighbours[schedule]

    def _plain(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        return list(dict.fromkeys(canonical(self._kind, schedule) for schedule in schedules))

    @property
    def num_tiling_features(self) -> int:
        """How many of the features belong to the tiling; they come first."""
        return len(self._compiled(next(iter(self._space))))

    def features(self, schedules: Iterable[Schedule]) -> Features:
        """[num_schedules, num_features] the features of each schedule."""
        return np.array([self._encode(schedule) for schedule in schedules])

    def _encode(self, schedule: Schedule) -> list[float]:
        workload, gpu = self._space.workload, self._space.gpu
        pairs = zip(schedule.launch_ops, workload.launch_ops, strict=True)
        plans = [feature for one, op in pairs for feature in search_of(op).plan_features(one, op, gpu)]
        return [*self._compiled(schedule), *plans, *ordering_features(schedule.ordering)]

    def _compiled(self, schedule: Schedule) -> list[float]:
        """Features of what is compiled."""
        tiling = self._tilings.get(schedule.tiling)
        if tiling is None:
            tiling = tiling_features(schedule.tiling, self._space.workload, self._space.gpu)
            self._tilings[schedule.tiling] = tiling
        pairs = zip(schedule.launch_ops, self._space.workload.launch_ops, strict=True)
        return [*tiling, *(feature for one, op in pairs for feature in search_of(op).compiled_features(one))]


def draw_elsewhere(
    begin: Begin, pools: Mapping[PlanKind, Pool], every: Mapping[PlanKind, int], num_periods: int
) -> None:
    """Starts the draws of `num_periods` periods, in order; one in `every[kind]` of them is for the pool of that
    kind."""
    drawn = {kind: pool for kind, pool in pools.items() if pool.is_drawn}
    calls = dict[tuple[PlanKind, int], Callable[[], list[Schedule]]]()
    for step in range(num_periods):
        for kind, pool in drawn.items():
            if step % every[kind] == 0:
                calls[kind, step // every[kind]] = partial(pool.draw, step // every[kind])
    if not calls:
        return
    take = begin(calls)
    for kind, pool in drawn.items():
        pool.take_draws({period: partial(take, (one, period)) for one, period in calls if one is kind})


class Untried:
    """A pool's schedules in one period, with their features; tried schedules are removed."""

    def __init__(self, pool: Pool, schedules: list[Schedule]) -> None:
        self.schedules = schedules
        self.features = pool.features(schedules)
        #: [num_schedules] whether each schedule is still untried.
        self.is_left = np.ones(len(schedules), dtype=bool)
        self._index = {schedule: index for index, schedule in enumerate(schedules)}

    def withdraw(self, schedule: Schedule) -> None:
        """Removes a schedule, if it is there."""
        index = self._index.get(schedule)
        if index is not None:
            self.is_left[index] = False
