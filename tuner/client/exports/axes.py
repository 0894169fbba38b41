"""A candidate as named values: one for each axis of the schedule space, including defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from tuner.client.documents.documents import Candidate, Trial
from tuner.core.schedule.schedule import Schedule

#: A value of an axis.
Value = bool | int | float | str

#: The axis that every candidate has.
PLAN_KIND = "plan_kind"


def axes_of(candidate: Candidate) -> dict[str, Value]:
    """E.g. ``plan_kind``, ``num_stages``, ``tiles_0_m``, ``interleave_kind``, and for an attention
    ``attentions_0_cluster``; for the library only its plan kind."""
    found: dict[str, Value] = {PLAN_KIND: candidate["plan_kind"]}
    if (given := candidate["schedule"]) is not None:
        for name, part in Schedule.from_json(given).spelled_out().items():
            found |= _flat(part if isinstance(part, dict) else {name: part})
    return found


def _flat(values: dict[str, Any]) -> Iterator[tuple[str, Value]]:
    for name, value in values.items():
        if isinstance(value, dict):
            inner = value
        elif isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
            yield name, str(value)  # a table counts as one value
            continue
        elif isinstance(value, list | tuple):
            inner = {str(index): one for index, one in enumerate(value)}
        else:
            if value is not None:
                yield name, str(value) if isinstance(value, StrEnum) else value
            continue
        yield from ((f"{name}_{rest}", one) for rest, one in _flat(inner))


def values_of(trials: Iterable[Trial]) -> dict[str, list[Value]]:
    """The values of each axis in the given trials, in order of appearance."""
    found: dict[str, dict[Value, None]] = {}
    for trial in trials:
        for name, value in axes_of(trial["candidate"]).items():
            found.setdefault(name, {})[value] = None
    return {name: sorted(values, key=lambda one: (isinstance(one, str), one)) for name, values in found.items()}
