"""Schedules as JSON and as text, in the released forms: only this module knows them.

There are three public forms. *JSON* has products in two halves, `tiling` and `ordering`, plus a list of `attentions`;
digests are computed from it. A schedule with an op of any other kind has the form of its levels instead, which follows
from the fields of its dataclasses. The *text* of a tiling, and of a launch op's schedule, identifies a proof. Later
additions are left out of each form while they have their default, so that digests survive new axes. The schedule of an
op of an unknown kind is kept unchanged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from tuner.core.problem.op_kinds import op_kinds
from tuner.core.schedule.axis import NEEDED, axes_of
from tuner.core.schedule.levels import (
    NO_ORDERING,
    NO_TILING,
    LaunchConfig,
    OpSchedule,
    TileOpSchedule,
    UnknownSchedule,
    launch_of,
    order_of,
    ordering_of,
    schedule_class,
    tile_ops_of,
    tiling_of,
)
from tuner.core.schedule.ordering import Interleave, Ordering, Raster, TaskOrder
from tuner.core.schedule.tiling import Tile, Tiling

T = TypeVar("T")
#: The lists of the released form besides its two halves: each belongs to one kind of op, which names it
#: (`RELEASED_IN`).
_LISTS = ("attentions",)
#: Axes in the order of their release. Those of the first form are always present; axes that are not listed here are
#: later than all of these.
_ORDER: dict[type, tuple[str, ...]] = {
    Tiling: (
        *("engine", "tiles", "num_stages", "num_warps", "input_stages", "window", "ahead_window", "startup_prefetch"),
        *("warpgroups", "swap_ab", "in_band", "epilogue", "split_k", "cluster_m", "cluster_n", "cluster_k"),
        *("resident_ctas", "weight_hint", "intermediate_hint"),
    ),
    Ordering: (
        *("rasters", "interleave", "granularity", "assignment", "ctas_per_sm", "reserved_sms", "sync_width"),
        *("partition", "part_major", "wait_position", "run_ahead", "split_order", "split_tiles", "run_starts"),
    ),
    Interleave: ("kind", "rows", "lag", "chunks"),
    Raster: ("kind", "width"),
    Tile: ("m", "n", "k"),
}
#: Objects whose JSON may have unknown keys, which are axes of earlier versions.
_OPEN = (Tiling, Ordering, Raster)


class Levels(NamedTuple):
    """A schedule's fields."""

    ops: tuple[OpSchedule, ...]
    launch: LaunchConfig | None
    order: TaskOrder | None


def to_json(levels: Levels) -> dict[str, Any]:
    """A dict of plain JSON values; `from_json` is its inverse."""
    data: dict[str, Any] = pickle.loads(_kept_json(levels))
    return data


@lru_cache(maxsize=1024)
def _kept_json(levels: Levels) -> bytes:
    """The JSON, pickled and cached: pages often show the same schedules, and unpickling is faster than a traversal."""
    return pickle.dumps(_released(levels) if _is_released(levels.ops) else _by_level(levels))


def parts() -> dict[str, Any]:
    """The parts of the released form with their types, by name; any part may be missing."""
    lists = {name: tuple[one, ...] for name, one in _released_kinds().items()}  # type: ignore[valid-type]
    return {"tiling": Tiling, "ordering": Ordering, **lists}


def _released_kinds() -> dict[str, type[OpSchedule]]:
    """Schedule classes of known kinds of ops that have a released list, by that list."""
    found = filter(None, map(schedule_class, op_kinds()))
    return {one.RELEASED_IN: one for one in found if one.RELEASED_IN}


def _list_of(op: OpSchedule) -> str:
    """The list of the released form that contains it; empty if none does."""
    return op.listed_in if isinstance(op, UnknownSchedule) else op.RELEASED_IN


def _is_released(ops: Iterable[OpSchedule]) -> bool:
    return all(type(op) is TileOpSchedule or _list_of(op) for op in ops)


def _views(levels: Levels) -> tuple[Tiling, Ordering]:
    shared = tuple(op for op in levels.ops if isinstance(op, TileOpSchedule))
    if levels.launch is None or levels.order is None:
        return NO_TILING, NO_ORDERING
    return tiling_of(shared, levels.launch), ordering_of(shared, levels.launch, levels.order)


def spelled_out(levels: Levels) -> dict[str, Any]:
    """Like `to_json`, including defaults."""
    return (_released if _is_released(levels.ops) else _by_level)(levels, is_whole=True)


def _released(levels: Levels, *, is_whole: bool = False) -> dict[str, Any]:
    encode = partial(_encode, is_whole=is_whole)
    lists = ((name, [encode(op) for op in levels.ops if _list_of(op) == name]) for name in _LISTS)
    data: dict[str, Any] = {name: own for name, own in lists if own}
    if levels.launch is None:
        return data
    tiling, ordering = _views(levels)
    return {"tiling": encode(tiling), "ordering": encode(ordering)} | data


def _by_level(levels: Levels, *, is_whole: bool = False) -> dict[str, Any]:
    encode = partial(_encode, is_whole=is_whole)
    ops = [({"op": op.kind} if op.kind else {}) | encode(op) for op in levels.ops]
    named = {"launch": levels.launch, "order": levels.order}
    return {"ops": ops} | {name: encode(level) for name, level in named.items() if level is not None}


def from_json(data: Mapping[str, Any]) -> Levels:
    """Inverse of `to_json`.

    Raises:
        IllegalSchedule: the numbers of tiles, parts and rasters differ.
        KeyError, TypeError, ValueError, AttributeError: it is not a schedule.
    """
    if "ops" in data:
        ops = tuple(map(_op, data["ops"]))
        if not any(isinstance(op, UnknownSchedule) for op in ops):  # it may belong to a tile op
            ops = tuple(sorted(ops, key=lambda op: not isinstance(op, TileOpSchedule)))
        launch = _decode(LaunchConfig, data["launch"]) if "launch" in data else None
        return Levels(ops, launch, _decode(TaskOrder, data["order"]) if "order" in data else None)
    own = tuple(_listed(name, one) for name in _LISTS for one in data.get(name, ()))
    if own and "tiling" not in data:
        return Levels(own, None, None)
    views = data["tiling"], data["ordering"]
    tiling, ordering = _decode(Tiling, views[0]), _decode(Ordering, views[1])
    shared = tile_ops_of(tiling, ordering)
    return Levels((*shared, *own), launch_of(tiling, ordering), order_of(ordering))


def names_of(kind: type) -> tuple[str, ...]:
    """The axes of a level or a view, in the order of their release."""
    return tuple(_defaults(kind))


class Frozen:
    """The text that identifies a proof and seeds the simulated twin: its `repr` leaves out newer axes with their
    defaults, and keeps the order of their release."""

    def __init__(self, chosen: Tiling | Ordering | Interleave | OpSchedule | Levels) -> None:
        if isinstance(chosen, Levels):
            tiling, ordering = _views(chosen)
            lists = {name: tuple(Frozen(op) for op in chosen.ops if _list_of(op) == name) for name in _LISTS}
            values = {"tiling": Frozen(tiling), "ordering": Frozen(ordering), **lists}
            others = [op for op in chosen.ops if not _is_released((op,))]
            kept = [f"{name}={value!r}" for name, value in values.items()]
            self._text = f"Schedule({', '.join([*kept, *map(repr, others)])})"
            return
        kind: Any = type(chosen)
        shown, released = {one.name for one in fields(chosen) if one.repr}, _released_axes(kind)
        found = {name: getattr(chosen, name) for name in _defaults(kind) if name in shown}
        later = {name: value for name, value in found.items() if name in released or value != _defaults(kind)[name]}
        merged = {name: Frozen(value) if isinstance(value, Interleave) else value for name, value in later.items()}
        self._text = f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in merged.items())})"

    def __repr__(self) -> str:
        return self._text


def _op(data: Mapping[str, Any]) -> OpSchedule:
    """One entry of the form of levels."""
    kind: Any = schedule_class(data["op"]) if "op" in data else TileOpSchedule
    if kind is None:
        return UnknownSchedule.of(data)
    made: OpSchedule = _decode(kind, {name: data[name] for name in data if name != "op"})
    return made


def _listed(name: str, data: Mapping[str, Any]) -> OpSchedule:
    """One entry of a list of the released form."""
    kind = _released_kinds().get(name)
    return UnknownSchedule.of(data, listed_in=name) if kind is None else _decode(kind, data)


def _released_axes(kind: Any) -> tuple[str, ...]:
    return _ORDER.get(kind, getattr(kind, "RELEASED_AXES", ()))


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """The default of each axis, as released; `NEEDED` if there is none."""
    axes = axes_of(kind)
    return {name: axes[name].default for name in dict.fromkeys((*_released_axes(kind), *axes))}


@cache
def _first(kind: Any) -> frozenset[str]:
    """The axes that are always in the JSON of `kind`."""
    return frozenset(name for name in _released_axes(kind) if not axes_of(kind)[name].since)


def _encode(value: Any, *, is_whole: bool = False) -> Any:
    """Plain JSON values; for a dataclass, the axes that differ from their default or are always present, or all if
    `is_whole`."""
    if isinstance(value, tuple):
        return tuple(_encode(one, is_whole=is_whole) for one in value)
    if not is_dataclass(value):
        return value
    if isinstance(value, UnknownSchedule):
        return value.to_json()
    kind: Any = type(value)
    return {
        name: _encode(inner, is_whole=is_whole)
        for name, default in _defaults(kind).items()
        if (inner := getattr(value, name)) != default or name in _first(kind) or is_whole
    }


def _decode(kind: type[T], data: Mapping[str, Any]) -> T:
    """Inverse of `_encode`."""
    known: Any = kind
    decoders, defaults = _decoders(known), _defaults(known)
    if kind not in _OPEN and (strange := [name for name in data if name not in decoders]):
        raise TypeError(f"{strange[0]} is not an axis: use one of {', '.join(decoders)}")
    needed = _first(known) if kind in _OPEN else ()
    for name, default in defaults.items():
        if name not in data and (default is NEEDED or name in needed):
            raise KeyError(name)
    return kind(**{name: decoders[name](data[name]) for name in defaults if name in data})


@cache
def _decoders(kind: type) -> dict[str, Callable[[Any], Any]]:
    return {name: _decoder(hint) for name, hint in get_type_hints(kind).items() if name in _defaults(kind)}


def _decoder(hint: Any) -> Callable[[Any], Any]:
    if get_origin(hint) is tuple:
        one = _decoder(get_args(hint)[0])
        return lambda values: tuple(map(one, values))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return partial(_decode, hint)
    return hint if issubclass(hint, StrEnum) else lambda value: value
