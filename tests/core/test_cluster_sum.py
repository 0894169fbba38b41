"""CTAs that share a tile's k and send each other their sums: every interleaving of what their warps wait for, send and
read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.core.roles import ARRIVE, WAIT, Action, first_problem

SEND, READ = "send", "read"
#: By task, the warps of a CTA that hold its tile; all but the last ones.
Tasks = tuple[int, ...]


def math_warp(tasks: Tasks, ctas: int, warps: int, cta: int, warp: int, fault: str) -> Iterator[Action]:
    """One warp of one CTA, with a statement left out or moved by `fault`."""
    others = [(cta + 1 + i) % ctas for i in range(ctas - 1)]
    for task, holders in enumerate(tasks):
        holds = warp < holders
        if warp == 0:
            yield ARRIVE, ("full", cta), 0
        if holds:
            if fault != "sends at once":
                yield WAIT, ("free", cta), task - 1
            for other in others:
                yield SEND, (f"to {other} from {cta}", warp), task
                for _ in range(1 if warp < holders - 1 else warps - holders + 1):  # as many bytes in each phase
                    yield ARRIVE, ("full", other), 0
        if holds or fault != "releases what it does not hold at once":
            yield WAIT, ("full", cta), task
        if fault == "releases before it reads":
            yield from ((ARRIVE, ("free", other), 0) for other in others)
        if holds:
            yield READ, (f"by {cta}", warp), task
        if fault != "releases before it reads":
            yield from ((ARRIVE, ("free", other), 0) for other in others)
        yield ARRIVE, ("met", cta), 0
        yield WAIT, ("met", cta), task


def problem(tasks: Tasks, ctas: int, warps: int, fault: str = "") -> str | None:
    """What goes wrong in some interleaving; `tasks` are the warps that hold each task's tile."""
    roles = [list(math_warp(tasks, ctas, warps, cta, warp, fault)) for cta in range(ctas) for warp in range(warps)]

    def loses_sums(action: Action, count: Callable[[tuple[str, int]], int]) -> str | None:
        what, (where, warp), task = action
        if what == SEND and count((f"by {where.split()[1]}", warp)) < count((where, warp)):
            return "sends over what is not read"
        if what == READ:
            cta = where.split()[1]
            sent = {count((f"to {cta} from {other}", warp)) for other in range(ctas) if str(other) != cta}
            if sent != {count((where, warp)) + 1}:
                return f"reads in task {task} what is not there"
        return None

    arrivals = {"full": 1 + (ctas - 1) * warps, "free": (ctas - 1) * warps, "met": warps}
    return first_problem(roles, arrivals, loses_sums)


@pytest.mark.parametrize(
    ("tasks", "ctas", "warps"),
    [((1, 1, 1, 1), 2, 1), ((2, 1, 2), 2, 2), ((1, 2, 1), 2, 2), ((1, 1, 1), 3, 1), ((1, 1), 4, 1), ((1, 1), 3, 2)],
)
def test_all_sums_arrive_once_and_nobody_waits_for_ever(tasks: Tasks, ctas: int, warps: int) -> None:
    assert problem(tasks, ctas, warps) is None


@pytest.mark.parametrize(
    ("fault", "tasks", "ctas", "warps", "found"),
    [
        ("sends at once", (1, 1, 1), 2, 1, "sends over what is not read"),
        ("releases before it reads", (1, 1, 1), 2, 1, "sends over what is not read"),
        ("releases what it does not hold at once", (1, 1), 3, 2, "sends over what is not read"),
    ],
)
def test_each_of_its_statements_is_needed(fault: str, tasks: Tasks, ctas: int, warps: int, found: str) -> None:
    assert re.fullmatch(found, problem(tasks, ctas, warps, fault) or "")
