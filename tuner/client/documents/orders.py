"""Custom orders from a client: a table in a JSON file, or a function of a Python file that makes one.

The function runs here. The service receives only the table.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import in_fewest_launches
from tuner.core.schedule.given_order import grids_of, in_order
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.schedule_files.json_file import read_json

Tiles = Iterable[Iterable[int]]
#: Takes the tile rows and tile columns of each op, and returns its tiles in starting order.
OrderFunction = Callable[[tuple[tuple[int, int], ...]], Tiles]
_REMEDY = "pass FILE.json with a list of [op, row, column], or FILE.py:NAME"


def read_order(name: str) -> Tiles | OrderFunction:
    """What `--order` names.

    Raises:
        InvalidInput: there is none.
    """
    path, _, function = name.rpartition(":")
    if not path or not path.endswith(".py"):
        table = read_json(Path(name), _REMEDY)
        if not isinstance(table, list):
            raise InvalidInput(name, "is not a list of tiles", _REMEDY)
        return table
    try:
        found = runpy.run_path(path).get(function)
    except Exception as error:  # whatever an external file does
        raise InvalidInput(name, f"failed: {type(error).__name__}: {error}", _REMEDY) from error
    if not callable(found):
        raise InvalidInput(name, f"has no function {function}", _REMEDY)
    return found  # type: ignore[no-any-return]


def ordered(name: str, order: Tiles | OrderFunction, workload: Workload, schedule: Schedule) -> Schedule:
    """The schedule in that order; for a function, in the one that it makes for the schedule's grids.

    Raises:
        InvalidInput: the function fails, or returns an invalid tile.
    """
    try:
        tiles: Any = order(grids_of(workload, schedule)) if callable(order) else order
        return in_order(schedule, tiles)
    except InvalidInput as error:
        raise InvalidInput(name, error.problem, error.remedy) from error
    except Exception as error:  # whatever an external function does
        raise InvalidInput(name, f"fails: {type(error).__name__}: {error}", "mend it") from error


def in_orders(
    workload: Workload, schedules: Sequence[str | Mapping[str, Any]], orders: Sequence[Tiles | OrderFunction]
) -> list[dict[str, Any]]:
    """Each schedule, and each in each of the orders, in the form of `POST /jobs`.

    Args:
        workload: what they compute.
        schedules: printed lines, or JSON.
        orders: of one's own.

    Raises:
        InvalidInput: one is none.
    """
    if not schedules:
        raise InvalidInput("orders", "need schedules, but there are none", "pass `schedules` too")
    found = list[Schedule]()
    for number, one in enumerate(schedules):
        base = read_line(one) if isinstance(one, str) else _of_json(f"schedules.{number}", one)
        found += [base, *(ordered(f"orders.{place}", order, workload, base) for place, order in enumerate(orders))]
    return [in_fewest_launches(workload, one).to_json() for one in found]


def _of_json(field: str, given: Mapping[str, Any]) -> Schedule:
    try:
        return Schedule.from_json(dict(given))
    except (IllegalSchedule, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            field, f"is not a schedule: {error}", ("pass its JSON, or the line that is printed")
        ) from error
