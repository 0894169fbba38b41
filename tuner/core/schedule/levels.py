"""The three levels of a schedule: an op, the launches that tile ops share, the workload.

A kind of op with its own axes adds a subclass of an op's schedule; its JSON follows from its fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

from tuner.core.problem.op_kinds import op_kinds, part_of
from tuner.core.schedule.axis import axis, log2
from tuner.core.schedule.ordering import GridConfig, Ordering, Raster, TaskOrder
from tuner.core.schedule.tiling import KernelConfig, Tile, Tiling
from tuner.errors import IllegalSchedule

T = TypeVar("T")
_BY_ROWS, _NO_TILE = Raster(), Tile(m=1, n=1, k=1)
_KINDS: dict[str, type[OpSchedule]] = {}
#: The schedule class of an op, by the name of its kind.
OP_SCHEDULES: Mapping[str, type[OpSchedule]] = MappingProxyType(_KINDS)
#: Kinds whose file ``schedule`` has been fully imported.
_IMPORTED = set[str]()


@dataclass(frozen=True, kw_only=True)
class OpSchedule:
    """The schedule of one op: a `TileOpSchedule` or a `LaunchOpSchedule`."""

    #: The name of the kind of op in JSON; empty for the schedule that any tile op has.
    kind: ClassVar[str] = ""
    #: For a kind whose schedules were released before kinds had a common form: the list that contains them, and its
    #: axes in the order of their release. Empty for all others.
    RELEASED_IN: ClassVar[str] = ""
    RELEASED_AXES: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, kind: str = "") -> None:
        """Registers a kind's class by the kind's name."""
        super().__init_subclass__()
        cls.kind = kind
        if kind:
            _KINDS.setdefault(kind, cls)


@dataclass(frozen=True, kw_only=True)
class TileOpSchedule(OpSchedule):
    """The schedule of an op whose tiles may share a launch with those of others."""

    #: The piece of the op that one task computes.
    tile: Tile
    #: Parts into which the k-steps of each of its tiles are split; 1 if they are not split.
    parts: int = axis(1, param="split_k", features=log2)
    #: The order of its tiles.
    raster: Raster = _BY_ROWS


@dataclass(frozen=True, kw_only=True)
class LaunchOpSchedule(OpSchedule):
    """The schedule of an op with its own launch, and of that launch."""

    @property
    def compiled(self) -> LaunchOpSchedule:
        """The same schedule with the first value of everything that is passed at launch: schedules with equal kernels
        become equal."""
        return self


@dataclass(frozen=True, kw_only=True)
class UnknownSchedule(LaunchOpSchedule):
    """The schedule of an op of an unknown kind: it keeps its JSON, so that its digest stays the same."""

    #: The kind in its JSON; empty for an entry of a released list.
    kind_name: str
    #: The released list that contains it; empty if the JSON names the kind.
    listed_in: str
    #: Its JSON, with sorted keys.
    text: str

    @classmethod
    def of(cls, data: Mapping[str, Any], *, listed_in: str = "") -> Self:
        """Keeps the JSON of a schedule."""
        return cls(kind_name=str(data.get("op", "")), listed_in=listed_in, text=json.dumps(data, sort_keys=True))

    def to_json(self) -> dict[str, Any]:
        """The stored JSON."""
        data: dict[str, Any] = json.loads(self.text)
        return data

    def __str__(self) -> str:
        return f"a choice for {self.kind_name or f'one of {self.listed_in}'}, which is not a known kind"


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(KernelConfig, GridConfig):
    """Common settings of the launches of tile ops: one kernel is compiled for all of them, and their grids have the
    same form."""


KERNEL_FIELDS, GRID_FIELDS, ORDER_FIELDS = (
    tuple(one.name for one in fields(level)) for level in (KernelConfig, GridConfig, TaskOrder)
)
_kernel, _grid, _order = (attrgetter(*names) for names in (KERNEL_FIELDS, GRID_FIELDS, ORDER_FIELDS))
#: The views of a workload without tile ops.
NO_TILING, NO_ORDERING = Tiling(tiles=(), num_stages=0, num_warps=0), Ordering(rasters=())


@cache
def schedule_class(kind: str) -> type[OpSchedule] | None:
    """The schedule class of an op of a kind: the one in the kind's file ``schedule``, or the common one of tile ops if
    there is no such file. None if the kind is unknown."""
    if kind not in _IMPORTED:
        # It registers its class when the class body ends, before it becomes a dataclass. Another thread may see it
        # then.
        part_of(kind, "schedule")
        _IMPORTED.update({kind} & op_kinds().keys())
    return _KINDS.get(kind, TileOpSchedule if kind in op_kinds() else None)


def tile_ops_of(
    tiling: Tiling, ordering: Ordering, before: Sequence[TileOpSchedule] = ()
) -> tuple[TileOpSchedule, ...]:
    """The schedules of tile ops from the views; parts that only a kind knows are taken from `before`, if given.

    Raises:
        IllegalSchedule: the views have different numbers of ops.
    """
    tiles, num_parts, rasters = tiling.tiles, tiling.split_k or (1,) * len(tiling.tiles), ordering.rasters
    for number, what in ((len(rasters), "rasters"), (len(num_parts), "numbers of parts")):
        if number != len(tiles):
            raise IllegalSchedule(f"{number} {what} for {len(tiles)} tiles: pass one of each per op")
    of_kinds = before if len(before) == len(tiles) else tiling.of_kinds or repeat(None)
    return tuple(
        _made(TileOpSchedule, {"tile": tile, "parts": parts, "raster": raster})
        if one is None or type(one) is TileOpSchedule
        else replace(one, tile=tile, parts=parts, raster=raster)
        for tile, parts, raster, one in zip(tiles, num_parts, rasters, of_kinds, strict=False)
    )


def of_kinds(tile_ops: Sequence[TileOpSchedule]) -> tuple[TileOpSchedule | None, ...]:
    """For each op, the choices that only its kind knows, with defaults for everything else; empty if no kind has
    any."""
    if all(type(op) is TileOpSchedule for op in tile_ops):
        return ()
    return tuple(
        None if type(op) is TileOpSchedule else replace(op, tile=_NO_TILE, parts=1, raster=_BY_ROWS) for op in tile_ops
    )


def with_kinds(tiling: Tiling, tile_ops: Sequence[TileOpSchedule]) -> Tiling:
    """The view `tiling` with the choices that only the ops' kinds know."""
    found = of_kinds(tile_ops)
    return tiling if found == tiling.of_kinds else replace(tiling, of_kinds=found)


def launch_of(tiling: Tiling, ordering: Ordering) -> LaunchConfig:
    """The launch settings from the views."""
    values = dict(zip(KERNEL_FIELDS, _kernel(tiling), strict=True))
    values.update(zip(GRID_FIELDS, _grid(ordering), strict=True))
    return _made(LaunchConfig, values)


def order_of(ordering: Ordering) -> TaskOrder:
    """The workload's settings from the view."""
    return _made(TaskOrder, dict(zip(ORDER_FIELDS, _order(ordering), strict=True)))


def has_same_grid(one: Ordering, other: Ordering) -> bool:
    """Whether launches with these orderings have the same grid."""
    return bool(_grid(one) == _grid(other))


def _made(kind: type[T], values: dict[str, Any]) -> T:
    """An instance with these values. Faster than `__init__`, which sets frozen attributes one by one: a search splits
    ten thousand schedules into their views.
    """
    one = object.__new__(kind)
    vars(one).update(values)
    return one


def tiling_of(tile_ops: Sequence[TileOpSchedule], launch: LaunchConfig) -> Tiling:
    """The view of everything that is compiled."""
    values, parts = vars(launch), tuple(op.parts for op in tile_ops)
    return Tiling(
        **{name: values[name] for name in KERNEL_FIELDS},
        tiles=tuple(op.tile for op in tile_ops),
        split_k=parts if any(number != 1 for number in parts) else (),
        of_kinds=of_kinds(tile_ops),
    )


def ordering_of(tile_ops: Sequence[TileOpSchedule], launch: LaunchConfig, order: TaskOrder) -> Ordering:
    """The part of a schedule that is data at run time, not compiled into the kernel."""
    values = vars(launch)
    return Ordering(
        **vars(order), **{name: values[name] for name in GRID_FIELDS}, rasters=tuple(op.raster for op in tile_ops)
    )
