"""The schedule of a launch op of any kind as an Optuna trial's parameters: by the fields of its dataclass."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import Any, get_type_hints

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.core.schedule.levels import OP_SCHEDULES, LaunchOpSchedule, OpSchedule

_PARAM = re.compile(r"(?P<field>\w+)_(?P<index>\d+)")


def launch_op_distributions(kinds: Sequence[str]) -> dict[str, BaseDistribution]:
    """The parameters of launch ops of these kinds, in order; wide enough for every schedule, since legality is the
    pool's business."""
    return {
        _name(kind, field, index): _distribution(hint)
        for index, kind in enumerate(kinds)
        for field, hint in _hints(OP_SCHEDULES[kind]).items()  # type: ignore[arg-type]
    }


def launch_op_params(schedules: Sequence[LaunchOpSchedule]) -> dict[str, Any]:
    """Schedules as a trial's parameters; `launch_ops_from_params` is its inverse."""
    return {
        _name(one.kind, field, index): str(value) if isinstance(value, StrEnum) else value
        for index, one in enumerate(schedules)
        for field, value in ((field, getattr(one, field)) for field in _hints(type(one)))  # type: ignore[arg-type]
    }


def launch_ops_from_params(params: dict[str, Any]) -> tuple[LaunchOpSchedule, ...]:
    """Inverse of `launch_op_params`, of all launch ops."""
    found: dict[int, tuple[type[OpSchedule], dict[str, Any]]] = {}
    for kind, cls in OP_SCHEDULES.items():
        hints = _hints(cls) if issubclass(cls, LaunchOpSchedule) else {}  # type: ignore[arg-type]
        for name, value in params.items():
            one = _PARAM.fullmatch(name.removeprefix(f"{kind}_")) if name.startswith(f"{kind}_") else None
            if one and one["field"] in hints:
                _, values = found.setdefault(int(one["index"]), (cls, {}))
                values[one["field"]] = hints[one["field"]](value)
    made = (cls(**values) for _, (cls, values) in sorted(found.items(), key=lambda item: item[0]))
    return tuple(one for one in made if isinstance(one, LaunchOpSchedule))


@cache
def _hints(cls: Hashable) -> dict[str, Any]:
    """The types of a schedule's fields: bool, int, float or an enumeration."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}  # type: ignore[arg-type]  # a dataclass


def _distribution(hint: Any) -> BaseDistribution:
    if hint is bool:
        return CategoricalDistribution([False, True])
    return CategoricalDistribution(list(map(str, hint))) if issubclass(hint, StrEnum) else IntDistribution(0, 2**31)


def _name(kind: str, field: str, index: int) -> str:
    return f"{kind}_{field}_{index}"
