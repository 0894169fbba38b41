"""A shared GPU: who else uses it, and how soon it is released and taken again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.rogues import rogue
from tests.unit.workers.host.test_gpu_process import PROBLEM, REQUEST
from tuner.core.trial.limits import Limits
from tuner.errors import Quarantined
from tuner.workers.host.gpu_process import GpuProcesses
from tuner.workers.host.lending import Lending, num_others


@pytest.mark.parametrize(
    ("listed", "own", "is_there", "others"),
    [
        ((), (1, 2), True, 0),
        ((2,), (1, 2), True, 0),
        ((2, 7), (1, 2), True, 1),
        ((7,), (1, 2), False, 1),
        ((70,), (1, 2), True, 0),  # ours, by its number outside of the container
        ((70, 80), (1, 2), True, 1),
        ((70, 80), (1, 2), False, 2),
    ],
)
def test_our_own_process_is_nobody_else_by_whatever_number(
    listed: tuple[int, ...], own: tuple[int, ...], is_there: bool, others: int
) -> None:
    assert num_others(listed, own, is_there=is_there) == others


def test_it_leaves_at_the_first_look_and_is_away_until_it_was_quiet_for_a_while() -> None:
    now, others, left = [100.0], [0], list[float]()
    lending = Lending(lambda: others[0], lambda: left.append(now[0]), quiet_s=10.0, clock=lambda: now[0])
    lending.read()
    assert (left, lending.away) == ([], "")
    others[0] = 1
    lending.read()
    assert left == [100.0]
    assert "another process uses the card" in lending.away
    others[0], now[0] = 0, 109.0
    lending.read()
    assert lending.away
    now[0] = 110.0
    assert lending.away == ""


class Lent:
    """Processes without a GPU, and a neighbour that comes and goes."""

    def __init__(self) -> None:
        self.has_neighbour = threading.Event()
        self.lending = Lending(lambda: int(self.has_neighbour.is_set()), lambda: self.processes.leave(), quiet_s=0.5)
        limits = Limits(start_deadline_s=20.0, prepare_deadline_s=20.0)
        self.processes = GpuProcesses("hangs", b"", limits, main=rogue, away=lambda: self.lending.away)
        self.lending.start()


@pytest.fixture
def lent() -> Iterator[Lent]:
    """A process that hangs at any request."""
    found = Lent()
    yield found
    found.lending.close()
    found.processes.close()


def test_a_process_in_the_middle_of_its_work_is_gone_within_a_second_and_back_when_the_neighbour_is_gone(
    lent: Lent,
) -> None:
    assert lent.processes.ready(PROBLEM) is None
    pid = lent.processes.pid
    assert pid is not None
    came_at = list[float]()

    def come() -> None:
        came_at.append(time.monotonic())
        lent.has_neighbour.set()

    threading.Timer(0.2, come).start()
    with pytest.raises(Quarantined, match="another process uses the card"):
        lent.processes.ask(REQUEST, 60.0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Quarantined, match="another process uses the card"):
        lent.processes.ready(PROBLEM)
    lent.has_neighbour.clear()
    deadline = time.monotonic() + 60
    while lent.lending.away:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert lent.processes.ready(PROBLEM) is None
    assert lent.processes.pid != pid


def test_a_process_that_only_waits_at_the_card_leaves_it_too(lent: Lent) -> None:
    assert lent.processes.ready(PROBLEM) is None
    pid = lent.processes.pid
    assert pid is not None
    lent.has_neighbour.set()
    deadline = time.monotonic() + 60
    while not lent.lending.away:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(Quarantined, match="another process uses the card"):
        until_gone(lent, deadline)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def until_gone(lent: Lent, deadline: float) -> None:
    """Asks the process for its greeting until this raises because it is gone, or until `deadline`."""
    while time.monotonic() < deadline:
        lent.processes.hello()
        time.sleep(0.02)
