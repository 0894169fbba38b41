"""Custom orders from a client: a table in a JSON file, or a function of a Python file that makes one.

The function runs on the client. The service receives only the table.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import in_fewest_launches
from tuner.core.schedule.given_order import grids_of, in_order, named
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.schedule_files.json_file import read_json

Tiles = Iterable[Iterable[int]]
#: Takes the tile rows and tile columns of each op, and returns its tiles in starting order.
OrderFunction = Callable[[tuple[tuple[int, int], ...]], Tiles]
#: The functions, with or without their names.
Orders = Sequence[Tiles | OrderFunction] | Mapping[str, Tiles | OrderFunction]
_REMEDY = "pass FILE.json with a list of [op, row, column], or FILE.py:NAME"


def read_order(name: str) -> Tiles | OrderFunction:
    """The order that `--order` names.

    Raises:
        InvalidInput: there is no such order.
    """
    path, _, function = name.rpartition(":")
    if not path or not path.endswith(".py"):
        table = read_json(Path(name), _REMEDY)
        if not isinstance(table, list):
            raise InvalidInput(name, "is not a list of tiles", _REMEDY)
        return table
    try:
        found = runpy.run_path(path).get(function)
    except Exception as error:  # the user's code may raise anything
        raise InvalidInput(name, f"failed: {type(error).__name__}: {error}", _REMEDY) from error
    if not callable(found):
        raise InvalidInput(name, f"has no function {function}", _REMEDY)
    return found  # type: ignore[no-any-return]


def ordered(
    name: str, order: Tiles | OrderFunction, workload: Workload, schedule: Schedule, *, called: str
) -> Schedule:
    """The schedule in a custom order; a function is called with the schedule's grids.

    Args:
        name: of the order, for error messages.
        order: as returned by `read_order`.
        workload: of the schedule.
        schedule: the one to reorder.
        called: its name in tables and plots.

    Raises:
        InvalidInput: the function fails, or returns an invalid tile.
    """
    try:
        tiles: Any = order(grids_of(workload, schedule)) if callable(order) else order
        return named(in_order(schedule, tiles), called)
    except InvalidInput as error:
        raise InvalidInput(name, error.problem, error.remedy) from error
    except Exception as error:  # the user's function may raise anything
        raise InvalidInput(
            name,
            f"fails: {type(error).__name__}: {error}",
            "use a function of one argument, the (rows, columns) of each op's tiles",
        ) from error


def names_of(files: Sequence[str]) -> list[str]:
    """Names of the orders of `--order`: the function or the file; a second order of that name gets ``-2``."""
    return _each_once([file.rpartition(":")[2] if ".py:" in file else Path(file).stem for file in files])


def _each_once(names: Sequence[str]) -> list[str]:
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}-{count + 1}" if count else name for name, count in zip(names, before, strict=True)]


def in_orders(workload: Workload, schedules: Sequence[str | Mapping[str, Any]], orders: Orders) -> list[dict[str, Any]]:
    """Each schedule, unchanged and in each of the orders, in the form of `POST /jobs`.

    Args:
        workload: what they compute.
        schedules: printed lines, or JSON.
        orders: custom ones, with or without names. Default names are the function's, and ``order0`` for a table.

    Raises:
        InvalidInput: one of them is not valid.
    """
    if not schedules:
        raise InvalidInput("orders", "were given without schedules", "pass `schedules` too")
    found, given = list[Schedule](), _with_names(orders)
    for number, one in enumerate(schedules):
        base = read_line(one) if isinstance(one, str) else _of_json(f"schedules.{number}", one)
        found += [base, *(ordered(f"orders.{key}", order, workload, base, called=name) for key, order, name in given)]
    return [in_fewest_launches(workload, one).to_json() for one in found]


def _with_names(orders: Orders) -> list[tuple[str | int, Tiles | OrderFunction, str]]:
    """Each order with its key in `orders` and its name."""
    if isinstance(orders, Mapping):
        return [(key, order, str(key)) for key, order in orders.items()]
    names = _each_once([getattr(order, "__name__", f"order{place}") for place, order in enumerate(orders)])
    return [(place, order, name) for place, (order, name) in enumerate(zip(orders, names, strict=True))]


def _of_json(field: str, given: Mapping[str, Any]) -> Schedule:
    try:
        return Schedule.from_json(dict(given))
    except (IllegalSchedule, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(field, f"is not a schedule: {error}", ("pass its JSON, or its line as printed")) from error
