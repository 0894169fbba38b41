"""The three levels at which a schedule chooses: an op, the launches that tile ops share, the workload.

A kind of op with axes of its own adds a subclass of what is chosen of an op; its JSON follows from its fields.
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
#: By the name of a kind of op, what is chosen of an op of it.
OP_SCHEDULES: Mapping[str, type[OpSchedule]] = MappingProxyType(_KINDS)
#: Kinds whose file ``schedule`` has been fully imported.
_IMPORTED = set[str]()


@dataclass(frozen=True, kw_only=True)
class OpSchedule:
    """What is chosen of one op: a `TileOpSchedule` or a `LaunchOpSchedule`."""

    #: The name of the kind of op, as JSON has it; empty of what any tile op has.
    kind: ClassVar[str] = ""
    #: Of a kind whose schedules were released before any kind's had a form: the list that they are in, and its axes in
    #: the order in which they came. Empty of all others.
    RELEASED_IN: ClassVar[str] = ""
    RELEASED_AXES: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, kind: str = "") -> None:
        """Makes a kind's class known by the kind's name."""
        super().__init_subclass__()
        cls.kind = kind
        if kind:
            _KINDS.setdefault(kind, cls)


@dataclass(frozen=True, kw_only=True)
class TileOpSchedule(OpSchedule):
    """What is chosen of an op whose tiles may share a launch with those of others."""

    #: The piece of the op that one task computes.
    tile: Tile
    #: Parts into which the k-steps of each of its tiles are split; 1 where they are not.
    parts: int = axis(1, param="split_k", features=log2)
    #: The order in which its tiles are walked.
    raster: Raster = _BY_ROWS


@dataclass(frozen=True, kw_only=True)
class LaunchOpSchedule(OpSchedule):
    """What is chosen of an op with a launch of its own, and of that launch."""

    @property
    def compiled(self) -> LaunchOpSchedule:
        """The same with the first values of all that a launch is told: schedules with one kernel have the same."""
        return self


@dataclass(frozen=True, kw_only=True)
class UnknownSchedule(LaunchOpSchedule):
    """What was chosen of an op whose kind is not known here: it keeps its JSON, so that its digest stays."""

    #: The kind, as its JSON says; empty of one that is in a released list.
    kind_name: str
    #: That list; empty where the JSON says the kind.
    listed_in: str
    #: Its JSON, by sorted keys.
    text: str

    @classmethod
    def of(cls, data: Mapping[str, Any], *, listed_in: str = "") -> Self:
        """Keeps the JSON of what was chosen."""
        return cls(kind_name=str(data.get("op", "")), listed_in=listed_in, text=json.dumps(data, sort_keys=True))

    def to_json(self) -> dict[str, Any]:
        """What was kept."""
        data: dict[str, Any] = json.loads(self.text)
        return data

    def __str__(self) -> str:
        return f"a choice for {self.kind_name or f'one of {self.listed_in}'}, which is not a known kind"


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(KernelConfig, GridConfig):
    """What the launches of tile ops share: one kernel is compiled for all of them, and each has a grid of its form."""


KERNEL_FIELDS, GRID_FIELDS, ORDER_FIELDS = (
    tuple(one.name for one in fields(level)) for level in (KernelConfig, GridConfig, TaskOrder)
)
_kernel, _grid, _order = (attrgetter(*names) for names in (KERNEL_FIELDS, GRID_FIELDS, ORDER_FIELDS))
#: Of a workload without tile ops.
NO_TILING, NO_ORDERING = Tiling(tiles=(), num_stages=0, num_warps=0), Ordering(rasters=())


@cache
def schedule_class(kind: str) -> type[OpSchedule] | None:
    """What is chosen of an op of that kind: the class in the file ``schedule`` of the kind; of one without such a file
    what any tile op has. None where the kind is not known here."""
    if kind not in _IMPORTED:
        # It makes its class known when the class's body ends, which is no dataclass then. Another thread may be there.
        part_of(kind, "schedule")
        _IMPORTED.update({kind} & op_kinds().keys())
    return _KINDS.get(kind, TileOpSchedule if kind in op_kinds() else None)


def tile_ops_of(
    tiling: Tiling, ordering: Ordering, before: Sequence[TileOpSchedule] = ()
) -> tuple[TileOpSchedule, ...]:
    """What the views say of each tile op; what only a kind knows is as it was `before`, where that is given.

    Raises:
        IllegalSchedule: the views are of different numbers of ops.
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
    """Of each op what only its kind chooses, all else at its plainest; empty where no kind chooses anything."""
    if all(type(op) is TileOpSchedule for op in tile_ops):
        return ()
    return tuple(
        None if type(op) is TileOpSchedule else replace(op, tile=_NO_TILE, parts=1, raster=_BY_ROWS) for op in tile_ops
    )


def with_kinds(tiling: Tiling, tile_ops: Sequence[TileOpSchedule]) -> Tiling:
    """A view of these ops, with what only their kinds choose."""
    found = of_kinds(tile_ops)
    return tiling if found == tiling.of_kinds else replace(tiling, of_kinds=found)


def launch_of(tiling: Tiling, ordering: Ordering) -> LaunchConfig:
    """What the views say of launches."""
    values = dict(zip(KERNEL_FIELDS, _kernel(tiling), strict=True))
    values.update(zip(GRID_FIELDS, _grid(ordering), strict=True))
    return _made(LaunchConfig, values)


def order_of(ordering: Ordering) -> TaskOrder:
    """What the view says of the workload."""
    return _made(TaskOrder, dict(zip(ORDER_FIELDS, _order(ordering), strict=True)))


def has_same_grid(one: Ordering, other: Ordering) -> bool:
    """Whether launches have it as well."""
    return bool(_grid(one) == _grid(other))


def _made(kind: type[T], values: dict[str, Any]) -> T:
    """As its `__init__` would, which sets a frozen attribute at a time: a search takes ten thousand schedules apart."""
    one = object.__new__(kind)
    vars(one).update(values)
    return one


def tiling_of(tile_ops: Sequence[TileOpSchedule], launch: LaunchConfig) -> Tiling:
    """All that is compiled."""
    values, parts = vars(launch), tuple(op.parts for op in tile_ops)
    return Tiling(
        **{name: values[name] for name in KERNEL_FIELDS},
        tiles=tuple(op.tile for op in tile_ops),
        split_k=parts if any(number != 1 for number in parts) else (),
        of_kinds=of_kinds(tile_ops),
    )


def ordering_of(tile_ops: Sequence[TileOpSchedule], launch: LaunchConfig, order: TaskOrder) -> Ordering:
    """All that is a table at run time."""
    values = vars(launch)
    return Ordering(
        **vars(order), **{name: values[name] for name in GRID_FIELDS}, rasters=tuple(op.raster for op in tile_ops)
    )
