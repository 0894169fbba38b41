"""A schedule's choices, at three levels: for each op, for the launches that tile ops share, and for the workload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

from tuner.core.json_form import JsonForm
from tuner.core.schedule import codec
from tuner.core.schedule.levels import (
    NO_ORDERING,
    NO_TILING,
    LaunchConfig,
    LaunchOpSchedule,
    OpSchedule,
    TileOpSchedule,
    has_same_grid,
    launch_of,
    order_of,
    ordering_of,
    tile_ops_of,
    tiling_of,
    with_kinds,
)
from tuner.core.schedule.ordering import Ordering, TaskOrder
from tuner.core.schedule.tiling import Tiling


@dataclass(frozen=True, kw_only=True)
class Schedule(JsonForm):
    """One point of the space: each choice at its own level. `tiling` and `ordering` are views of it, by when a
    choice takes effect: when compiled, or as a table at run time."""

    #: One schedule per op: those of tile ops in the workload's order, followed by those of launch ops.
    ops: tuple[OpSchedule, ...]
    #: None if there is no tile op.
    launch: LaunchConfig | None = None
    #: The relation between tile ops; None if there is none.
    order: TaskOrder | None = None

    @classmethod
    def of(
        cls,
        tiling: Tiling,
        ordering: Ordering,
        launch_ops: Sequence[LaunchOpSchedule] = (),
        *,
        before: Sequence[TileOpSchedule] = (),
    ) -> Self:
        """The schedule with these views and launch ops; parts that only a kind of tile op knows are taken from
        `before`.

        Raises:
            IllegalSchedule: the views have different numbers of ops.
        """
        tile_ops = tile_ops_of(tiling, ordering, before)
        if not tile_ops:
            return cls(ops=tuple(launch_ops))
        made = cls(ops=(*tile_ops, *launch_ops), launch=launch_of(tiling, ordering), order=order_of(ordering))
        if not tiling.split_k or any(number != 1 for number in tiling.split_k):
            view = with_kinds(tiling, tile_ops)
            made._keep(tiling=view, ordering=ordering, tile_ops=tile_ops, launch_ops=tuple(launch_ops))
        return made

    def but(
        self,
        *,
        tiling: Tiling | None = None,
        ordering: Ordering | None = None,
        launch_ops: Sequence[LaunchOpSchedule] | None = None,
    ) -> Self:
        """The same schedule with a different view, or with different launch ops. Unchanged parts are the same
        objects."""
        own = self.launch_ops if launch_ops is None else tuple(launch_ops)
        tiling, ordering = tiling or self.tiling, ordering or self.ordering
        if not tiling.tiles or self.launch is None or (tiling.split_k and max(tiling.split_k) == 1):
            return self.of(tiling, ordering, own, before=self.tile_ops)
        before, after = self.tiling, self.ordering
        same_tiles = tiling.tiles is before.tiles and tiling.split_k is before.split_k
        same_ops = same_tiles and ordering.rasters is after.rasters
        tile_ops = self.tile_ops if same_ops else tile_ops_of(tiling, ordering, self.tile_ops)
        same_launch = tiling is before and (ordering is after or has_same_grid(ordering, after))
        made = type(self)(
            ops=self.ops if same_ops and launch_ops is None else (*tile_ops, *own),
            launch=self.launch if same_launch else launch_of(tiling, ordering),
            order=self.order if ordering is after else order_of(ordering),
        )
        made._keep(tiling=with_kinds(tiling, tile_ops), ordering=ordering, tile_ops=tile_ops, launch_ops=own)
        return made

    def _keep(self, **found: Any) -> None:
        """Stores derived values that are already known."""
        vars(self).update(found)

    @cached_property
    def tile_ops(self) -> tuple[TileOpSchedule, ...]:
        """The ops that may share a launch."""
        return tuple(op for op in self.ops if isinstance(op, TileOpSchedule))

    @cached_property
    def launch_ops(self) -> tuple[Any, ...]:
        """The ops with their own launches, each a `LaunchOpSchedule` of its kind."""
        return tuple(op for op in self.ops if isinstance(op, LaunchOpSchedule))

    @cached_property
    def tiling(self) -> Tiling:
        """The part that is compiled into the kernel of tile ops; without tiles if there are none."""
        return tiling_of(self.tile_ops, self.launch) if self.launch else NO_TILING

    @cached_property
    def ordering(self) -> Ordering:
        """The part that is a table at run time; without rasters if there is no tile op."""
        return ordering_of(self.tile_ops, self.launch, self.order) if self.launch and self.order else NO_ORDERING

    def __hash__(self) -> int:
        known = vars(self)
        if "_hash" not in known:  # cached: a search looks each schedule up many times
            known["_hash"] = hash((self.ops, self.launch, self.order))
        return int(known["_hash"])

    def __repr__(self) -> str:
        return repr(codec.Frozen(self._levels))  # the simulated twin uses it as a seed

    def __getstate__(self) -> dict[str, Any]:
        """The state without derived values: a hash is only valid in this process."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __str__(self) -> str:
        shared = (f"{self.tiling} | {self.ordering}",) if self.launch else ()
        return " | ".join((*map(str, self.launch_ops), *shared))

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse.

        Later additions are left out while they have their default, so that digests survive new axes.
        """
        return codec.to_json(self._levels)

    def spelled_out(self) -> dict[str, Any]:
        """Like `to_json`, with every axis."""
        return codec.spelled_out(self._levels)

    @property
    def _levels(self) -> codec.Levels:
        return codec.Levels(self.ops, self.launch, self.order)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            IllegalSchedule: it does not have one tile, raster and number of parts per op.
            KeyError, TypeError, ValueError, AttributeError: it is not a schedule.
        """
        ops, launch, order = codec.from_json(data)
        return cls(ops=ops, launch=launch, order=order)

    @property
    def digest(self) -> str:
        """16 hex digits that identify this schedule."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
