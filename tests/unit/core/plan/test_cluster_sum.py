"""CTAs that split a tile's K and exchange their sums: every interleaving of their warps' waits, sends and reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.lanes import soak_unless
from tests.support.roles import ARRIVE, WAIT, Action, first_problem

SEND, READ = "send", "read"
SLOTS = 2
#: By task: the warps of a CTA that compute its tile (all but the last ones), and the exchanges of its sums.
Tasks = tuple[tuple[int, int], ...]


class MathWarp:
    """One warp of one CTA, with a statement omitted or moved by `fault`."""

    def __init__(self, ctas: int, warps: int, cta: int, warp: int, fault: str) -> None:
        self._ctas, self._warps, self._cta, self._warp, self._fault = ctas, warps, cta, warp, fault
        self._others = [(cta + 1 + i) % ctas for i in range(ctas - 1)]

    def actions(self, tasks: Tasks) -> Iterator[Action]:
        """All its actions; exchanges are numbered through all tasks."""
        first = 0
        for task, (holders, exchanges) in enumerate(tasks):
            ahead = min(exchanges, 2 if self._fault == "sends two ahead" else 1)
            for exchange in range(ahead):
                yield from self._send(first + exchange, holders)
            for exchange in range(exchanges):
                if exchange + ahead < exchanges:
                    yield from self._send(first + exchange + ahead, holders)
                yield from self._add(first + exchange, holders)
            yield ARRIVE, ("met", self._cta), 0
            yield WAIT, ("met", self._cta), task
            if self._warp < holders or self._fault != "only counts its own sums":
                first += exchanges

    def _send(self, exchange: int, holders: int) -> Iterator[Action]:
        slot, phase = exchange % SLOTS, exchange // SLOTS
        if self._warp == 0:
            yield ARRIVE, (f"full{slot}", self._cta), 0
            if self._gets_nothing(self._cta, exchange):
                for _ in range(len(self._others) * self._warps):  # no bytes are missing
                    yield ARRIVE, (f"full{slot}", self._cta), 0
        if self._warp >= holders:
            return
        if self._fault != "sends at once":
            yield WAIT, (f"empty{slot}", self._cta), phase - 1
        for other in self._others:
            if self._gets_nothing(other, exchange):
                continue
            yield SEND, (f"to {other} from {self._cta} by slot {slot}", self._warp), exchange
            # Each exchange has the same number of bytes, whichever CTA sends them.
            for _ in range(1 if self._warp < holders - 1 else self._warps - holders + 1):
                yield ARRIVE, (f"full{slot}", other), 0

    def _add(self, exchange: int, holders: int) -> Iterator[Action]:
        slot, phase = exchange % SLOTS, exchange // SLOTS
        holds = self._warp < holders
        release = [(ARRIVE, (f"empty{slot}", other), 0) for other in self._others]
        if holds or self._fault != "does not release an unused slot immediately":
            yield WAIT, (f"full{slot}", self._cta), phase
        if self._fault == "releases before it reads":
            yield from release
        if holds and not self._gets_nothing(self._cta, exchange):
            yield READ, (f"by {self._cta} of slot {slot}", self._warp), exchange
        if self._fault != "releases before it reads":
            yield from release

    def _gets_nothing(self, cta: int, exchange: int) -> bool:
        return self._fault == "sends nothing if a share has no vector" and cta == 0 and exchange > 0


def problem(tasks: Tasks, ctas: int, warps: int, fault: str = "") -> str | None:
    """What goes wrong in some interleaving."""
    roles = [
        list(MathWarp(ctas, warps, cta, warp, fault).actions(tasks)) for cta in range(ctas) for warp in range(warps)
    ]

    def loses_sums(action: Action, count: Callable[[tuple[str, int]], int]) -> str | None:
        what, (where, warp), exchange = action
        if what == SEND:
            _, to, _, _, _, _, slot = where.split()
            if count((f"by {to} of slot {slot}", warp)) < count((where, warp)):
                return "overwrites sums that have not been read"
        if what == READ:
            _, cta, _, _, slot = where.split()
            others = [str(other) for other in range(ctas) if str(other) != cta]
            sent = {count((f"to {cta} from {other} by slot {slot}", warp)) for other in others}
            if sent != {count((where, warp)) + 1}:
                return f"reads sums in exchange {exchange} that have not arrived"
        return None

    arrivals = {"met": warps}
    for slot in range(SLOTS):
        arrivals |= {f"full{slot}": 1 + (ctas - 1) * warps, f"empty{slot}": (ctas - 1) * warps}
    return first_problem(roles, arrivals, loses_sums)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "ctas", "warps"),
    soak_unless(
        lambda place, _: place < 7,
        [
            (((1, 1),) * 5, 2, 1),
            (((1, 5), (1, 3)), 2, 1),
            (((1, 2), (1, 1), (1, 4)), 2, 1),
            (((2, 2), (1, 2), (2, 1)), 2, 2),
            (((1, 3), (2, 2)), 2, 2),
            (((2, 1), (1, 1), (2, 1)), 2, 2),
            (((1, 3), (1, 1)), 3, 1),
            (((1, 1), (1, 1)), 4, 1),
            (((1, 1),), 3, 2),
            (((2, 4), (1, 3)), 2, 2),
        ],
    ),
)
def test_all_sums_arrive_once_and_nobody_waits_for_ever(tasks: Tasks, ctas: int, warps: int) -> None:
    assert problem(tasks, ctas, warps) is None


@pytest.mark.parametrize(
    ("fault", "tasks", "ctas", "warps", "found"),
    [
        ("sends at once", ((1, 3),), 2, 1, "overwrites sums that have not been read"),
        ("sends at once", ((1, 2), (1, 2)), 2, 1, "overwrites sums that have not been read"),
        ("releases before it reads", ((1, 3),), 2, 1, "overwrites sums that have not been read"),
        ("does not release an unused slot immediately", ((1, 3),), 2, 2, "nobody can go on"),
        ("sends nothing if a share has no vector", ((2, 3),), 2, 2, "nobody can go on"),
        ("sends two ahead", ((1, 3),), 2, 1, "nobody can go on"),
        (
            "only counts its own sums",
            ((1, 1), (2, 2)),
            2,
            2,
            "reads sums in exchange 0 that have not arrived",
        ),
    ],
)
def test_each_of_its_statements_is_needed(fault: str, tasks: Tasks, ctas: int, warps: int, found: str) -> None:
    assert re.fullmatch(found, problem(tasks, ctas, warps, fault) or "")
