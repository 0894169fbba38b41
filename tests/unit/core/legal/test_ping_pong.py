"""The roles of a CTA with alternating math warpgroups: every interleaving of their waits and arrivals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.roles import ARRIVE, WAIT, Action, first_problem

# A model of the roles, which changes of the program do not reach.
pytestmark = pytest.mark.soak

#: Fewer than on the device, and still a multiple of the teams.
TEAMS, WARPS, FEED_SLOTS = 2, 2, 2
#: By a barrier's name: the arrivals that complete a phase, if not one.
ARRIVALS = {"empty": WARPS, "turn": WARPS, "free": 2 + WARPS, "met": WARPS}
#: The barrier at which a post is an arrival.
POSTED = ("posted", 0)


def feeder(tasks: tuple[int, ...], slots: int) -> Iterator[Action]:
    """Publishes each task after the first stage of the previous one, and requests its stages; at the end it waits until
    the last one is posted, before it turns to the other list."""
    yield from feed(0)
    stage = 0
    for task, steps in enumerate(tasks):
        for step in range(steps):
            yield WAIT, ("empty", stage % slots), stage // slots - 1
            yield ARRIVE, ("full", stage % slots), 0
            if step == 0 and task + 1 < len(tasks):
                yield from feed(task + 1)
            stage += 1
    last = len(tasks) - 1
    yield WAIT, ("free", last % FEED_SLOTS), last // FEED_SLOTS
    yield ARRIVE, POSTED, len(tasks)


def feed(task: int) -> Iterator[Action]:
    yield WAIT, ("free", task % FEED_SLOTS), task // FEED_SLOTS - 1
    yield ARRIVE, ("fed", task % FEED_SLOTS), 0


def inputs_warp(tasks: tuple[int, ...]) -> Iterator[Action]:
    """Reads every slot; its ring works like the weights' ring."""
    for task in range(len(tasks)):
        yield WAIT, ("fed", task % FEED_SLOTS), task // FEED_SLOTS
        yield ARRIVE, ("free", task % FEED_SLOTS), 0


def poster(tasks: tuple[int, ...], fault: str) -> Iterator[Action]:
    """Posts the tasks that the teams have stored, one by one; a slot is free after its post."""
    for task in range(len(tasks)):
        slot, phase = task % FEED_SLOTS, task // FEED_SLOTS
        yield WAIT, ("fed", slot), phase
        if fault == "passes before it posts":
            yield ARRIVE, ("free", slot), 0
        yield WAIT, *((("stored", 0), task) if fault == "one barrier for all slots" else (("stored", slot), phase))
        yield ARRIVE, POSTED, task
        if fault != "passes before it posts":
            yield ARRIVE, ("free", slot), 0


def math_warp(tasks: tuple[int, ...], slots: int, team: int, warp: int, fault: str) -> Iterator[Action]:
    """One warp of a team, with a statement omitted or changed by `fault`."""
    stage = 0
    for task, steps in enumerate(tasks):
        yield WAIT, ("fed", task % FEED_SLOTS), task // FEED_SLOTS
        if task % TEAMS != team:
            stage += steps
            yield ARRIVE, ("free", task % FEED_SLOTS), 0
            continue
        if fault != "no turns":
            yield WAIT, ("turn", 0), task - 1
        for own in range(stage, stage + steps):
            yield WAIT, ("full", own % slots), own // slots
            if own > stage:
                yield ARRIVE, ("empty", (own - 1) % slots), 0
        stage += steps
        for _ in range(WARPS * (warp == 0) if fault == "one warp hands over" else 1):
            yield ARRIVE, ("turn", 0), 0
        yield ARRIVE, ("empty", (stage - 1) % slots), 0
        yield ARRIVE, ("wrote", task), 0
        if fault != "does not meet":
            yield ARRIVE, ("met", team), 0
            yield WAIT, ("met", team), task // TEAMS
        if warp == 0:
            yield ARRIVE, ("stored", 0 if fault == "one barrier for all slots" else task % FEED_SLOTS), 0


def problem(tasks: tuple[int, ...], fault: str = "", slots: int = 2) -> str | None:
    """What goes wrong in some interleaving; `tasks` are the stages of each task, `slots` those of a ring."""
    roles = [list(feeder(tasks, slots)), list(inputs_warp(tasks)), list(poster(tasks, fault))]
    roles += [list(math_warp(tasks, slots, team, warp, fault)) for team in range(TEAMS) for warp in range(WARPS)]

    def too_early(action: Action, count: Callable[[tuple[str, int]], int]) -> str | None:
        _, thing, task = action
        if thing != POSTED:
            return None
        if task == len(tasks):
            is_early = (num_posted := count(POSTED)) < task
            return f"turns to the other list when {num_posted} of {task} tasks are posted" if is_early else None
        return f"posts task {task} before all of it is stored" if count(("wrote", task)) < WARPS else None

    return first_problem(roles, ARRIVALS, too_early)


@pytest.mark.parametrize("tasks", [(1, 3, 1), (2, 1, 1), (1, 1, 1, 1)], ids=str)
def test_teams_that_take_turns_wait_for_the_right_phases_and_for_ever_for_none(tasks: tuple[int, ...]) -> None:
    assert problem(tasks) is None


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("no turns", "full: passes in phase 1, waiting for the end of phase 2"),
        ("one warp hands over", "nobody can go on"),
        ("passes before it posts", r"turns to the other list when \d of 3 tasks are posted"),
        ("one barrier for all slots", "nobody can go on"),
        ("does not meet", r"posts task \d before all of it is stored"),
    ],
)
def test_each_of_its_statements_is_needed(fault: str, found: str) -> None:
    assert re.fullmatch(found, problem((1, 3, 1), fault) or "")
