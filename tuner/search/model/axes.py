"""The axes of a schedule in two forms: as the parameters of an Optuna trial, and as numeric features for a model.

Both are derived from the records of the axes, which stand next to the fields with their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import FeaturesOf, axes_of
from tuner.core.schedule.levels import (
    OP_SCHEDULES,
    LaunchConfig,
    LaunchOpSchedule,
    OpSchedule,
    TileOpSchedule,
    schedule_class,
)
from tuner.core.schedule.ordering import GridConfig, Ordering, Raster, TaskOrder
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import KernelConfig, Tile, Tiling

#: Maximum number of ops of a chain that is not cut into runs.
MAX_UNCUT_OPS = 2
#: Stands for the kind of an op in a parameter's name.
_KIND = "op_kind"

Features = npt.NDArray[np.float64]


def _boundaries(num_ops: int) -> range:
    """The ops of a chain at which a run may begin; none in pairs, which are not cut."""
    return range(1, num_ops if num_ops > MAX_UNCUT_OPS else 1)


def distributions(like: Schedule) -> dict[str, BaseDistribution]:
    """The parameters of a trial with schedules for these ops. They cover every schedule, since the pool checks
    legality."""
    return {name: _distribution(value) for name, value in _values(like)}


def _distribution(value: Any) -> BaseDistribution:
    if isinstance(value, bool):
        return CategoricalDistribution([False, True])
    if isinstance(value, StrEnum):
        return CategoricalDistribution([str(one) for one in type(value)])
    return CategoricalDistribution([value]) if isinstance(value, str) else IntDistribution(0, 2**31)


def to_params(schedule: Schedule) -> dict[str, Any]:
    """A schedule as a trial's parameters; `from_params` is its inverse."""
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in _values(schedule)}


def _values(schedule: Schedule) -> Iterator[tuple[str, Any]]:
    """The name and the value of each parameter."""
    if schedule.launch is not None and schedule.order is not None:
        yield from _named(schedule.launch, "{}")
        yield from _named(schedule.order, "{}")
        starts = schedule.order.run_starts
        yield from ((f"begins_run_{op}", op in starts) for op in _boundaries(len(schedule.tile_ops)))
    for index, op in enumerate(schedule.tile_ops):
        if op.kind:
            yield f"{_KIND}_{index}", op.kind
        yield from _named(op, f"{{}}_{index}")
    for index, own in enumerate(schedule.launch_ops):
        yield from _named(own, f"{own.kind}_{{}}_{index}")


def _named(chosen: Any, form: str) -> Iterator[tuple[str, Any]]:
    """In `form`, braces stand for the name of an axis. Each op at which a run may begin is a separate axis."""
    for name, one in axes_of(type(chosen)).items():
        value = getattr(chosen, name)
        if is_dataclass(value):
            yield from _named(value, form)
        elif not isinstance(value, tuple):
            yield form.format(one.param_name), value


def from_params(params: dict[str, Any]) -> Schedule:
    """Inverse of `to_params`."""
    tile_ops = range(sum(name.startswith("tile_m_") for name in params))
    own = tuple(_launch_ops(params))
    if not tile_ops:
        return Schedule(ops=own)
    shared = tuple(_made(_tile_op(params, op), params, f"{{}}_{op}") for op in tile_ops)
    starts = tuple(op for op in _boundaries(len(tile_ops)) if params[f"begins_run_{op}"])
    return Schedule(
        ops=(*shared, *own),
        launch=_made(LaunchConfig, params, "{}"),
        order=_made(TaskOrder, params, "{}", run_starts=starts),
    )


def _tile_op(params: dict[str, Any], op: int) -> type[OpSchedule]:
    return _of_kind(params[f"{_KIND}_{op}"]) if f"{_KIND}_{op}" in params else TileOpSchedule


def _of_kind(kind: str) -> type[OpSchedule]:
    found = schedule_class(kind)
    assert found, kind
    return found


def _launch_ops(params: dict[str, Any]) -> Iterator[LaunchOpSchedule]:
    """The schedules of the launch ops in order, from `params`."""
    kinds = {kind: one for kind in tuple(OP_SCHEDULES) if issubclass(one := _of_kind(kind), LaunchOpSchedule)}
    index = 0
    while found := [one for kind, one in kinds.items() if _first_name(kind, one, index) in params]:
        yield _made(found[0], params, f"{found[0].kind}_{{}}_{index}")
        index += 1


def _first_name(kind: str, one: type[OpSchedule], index: int) -> str:
    return f"{kind}_{next(iter(axes_of(one).values())).param_name}_{index}"


def _made(kind: Any, params: dict[str, Any], form: str, **known: Any) -> Any:
    """The inverse of `_named`."""
    axes, values = axes_of(kind), dict(known)
    for name, hint in _hints(kind).items():
        if name in known or get_origin(hint) is tuple:
            continue
        if is_dataclass(hint):
            values[name] = _made(hint, params, form)
        else:
            value = params[form.format(axes[name].param_name)]
            values[name] = hint(value) if isinstance(hint, type) and issubclass(hint, StrEnum) else value
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


#: Features of each class, in the order of its fields.
_KERNEL, _TILE, _RASTER = FeaturesOf(KernelConfig), FeaturesOf(Tile), FeaturesOf(Raster)
_ORDERING = FeaturesOf(Ordering, [*axes_of(TaskOrder), *axes_of(GridConfig)])


def tiling_features(tiling: Tiling, workload: Workload, gpu: Gpu) -> list[float]:
    """Features of what is compiled, and how well each op's tiles fill the last wave: these determine a tiling's speed.
    Empty for a tiling without tiles."""
    if not tiling.tiles:
        return []
    features = _KERNEL(tiling)
    for index, (tile, op) in enumerate(zip(tiling.tiles, workload.tile_ops, strict=True)):
        num_parts = tiling.num_parts(index)
        num_rows, num_cols = op.tile_grid(tile.m, tile.n)
        waves = num_rows * num_cols * num_parts / gpu.num_clusters(tiling.cluster_size)
        features += [math.log2(num_parts), *_TILE(tile)]
        features += [math.log2(math.ceil(waves) / waves), math.log2(num_rows * tile.m / op.m)]
    own = (one for one in tiling.of_kinds if one is not None)
    return features + [feature for one in own for feature in own_features(one)]


def own_features(op: TileOpSchedule) -> list[float]:
    """Features of choices that only the op's kind knows."""
    kind: Any = type(op)
    return [] if kind is TileOpSchedule else _own(kind)(op)


@cache
def _own(kind: Any) -> FeaturesOf:
    return FeaturesOf(kind, [name for name in axes_of(kind) if name not in axes_of(TileOpSchedule)])


def ordering_features(ordering: Ordering) -> list[float]:
    """Features of the choices that become a table at run time. Empty for an ordering without rasters."""
    if not ordering.rasters:
        return []
    features = _ORDERING(ordering)
    for raster in ordering.rasters:
        features += _RASTER(raster)
    return features + [float(op in ordering.run_starts) for op in _boundaries(len(ordering.rasters))]
