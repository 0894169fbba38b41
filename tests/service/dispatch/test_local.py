"""The single-machine implementation of the protocols passes their contracts; also tests its additions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from tests.service.dispatch.contracts import (
    LIBRARY,
    OURS,
    PROBLEM,
    BuildPoolContract,
    MeasureLaneContract,
    Watched,
    prepared_of,
)
from tests.support.waiting import wait_until
from tuner.core.trial.evaluator import Prepared
from tuner.core.trial.outcome import Measured
from tuner.dispatch import BuildPool, LocalDispatcher, MeasureLane
from tuner.dispatch.local import THREADS_PER_PLACE
from tuner.errors import NotFound, WorkerError

TARGET_ID = "simulated:h200"


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def dispatcher(watched: Watched) -> Iterator[LocalDispatcher]:
    dispatcher = LocalDispatcher([watched], num_places=3)
    yield dispatcher
    dispatcher.close()


class TestLocalBuilds(BuildPoolContract):
    @pytest.fixture
    def pool(self, dispatcher: LocalDispatcher) -> BuildPool:
        return dispatcher.builds(TARGET_ID)


class TestLocalLane(MeasureLaneContract):
    @pytest.fixture
    def lane(self, dispatcher: LocalDispatcher) -> MeasureLane:
        return dispatcher.lane(TARGET_ID)


def test_a_card_measures_while_others_candidates_are_built(watched: Watched, dispatcher: LocalDispatcher) -> None:
    building = [dispatcher.builds(TARGET_ID).prepare(PROBLEM, candidate) for candidate in OURS]
    measuring = dispatcher.lane(TARGET_ID).measure(PROBLEM, prepared_of(watched, LIBRARY))
    wait_until(lambda: watched.num_preparing >= 3 and watched.num_measuring == 1)
    watched.may_go.set()
    assert isinstance(measuring.result(120), Measured)
    assert all(isinstance(one.result(120), Prepared) for one in building)


def test_two_cards_share_the_places_of_their_machine() -> None:
    one, other = Watched(), Watched()
    dispatcher = LocalDispatcher([one, other], num_places=2)
    futures = [dispatcher.builds(TARGET_ID, worker).prepare(PROBLEM, OURS[0]) for worker in (0, 1) for _ in range(9)]
    wait_until(lambda: one.num_preparing + other.num_preparing == 2 * THREADS_PER_PLACE)
    for watched in (one, other):
        watched.may_go.set()
    assert all(isinstance(future.result(120), Prepared) for future in futures)
    assert max(one.most_preparing, other.most_preparing) <= 2 * THREADS_PER_PLACE
    dispatcher.close()


def test_an_environment_that_could_not_be_read_is_asked_for_again() -> None:
    watched = Watched()
    watched.broken_environments = 1
    dispatcher = LocalDispatcher([watched])
    with suppress(WorkerError):  # unless the first call comes after the failure and therefore retries immediately
        dispatcher.lane(TARGET_ID).environment()
    assert dispatcher.lane(TARGET_ID).environment().simulated
    dispatcher.close()


def test_targets_work_side_by_side() -> None:
    one, other = Watched(), Watched("simulated:a40")
    dispatcher = LocalDispatcher([one, other])
    stuck = dispatcher.lane(TARGET_ID).measure(PROBLEM, prepared_of(one, LIBRARY))
    other.may_go.set()
    assert isinstance(
        dispatcher.lane("simulated:a40").measure(PROBLEM, prepared_of(other, LIBRARY)).result(120), Measured
    )
    assert not stuck.done()
    assert [target.id for target in dispatcher.targets] == [TARGET_ID, "simulated:a40"]
    dispatcher.close()


def test_two_evaluators_of_one_target_work_side_by_side_and_are_one_target() -> None:
    one, other = Watched(), Watched()
    dispatcher = LocalDispatcher([one, other])
    assert [target.id for target in dispatcher.targets] == [TARGET_ID]
    assert (dispatcher.num_workers(TARGET_ID), dispatcher.num_workers("h200")) == (2, 0)
    stuck = dispatcher.lane(TARGET_ID).measure(PROBLEM, prepared_of(one, LIBRARY))
    other.may_go.set()
    free = dispatcher.lane(TARGET_ID, worker=1)
    assert isinstance(free.measure(PROBLEM, prepared_of(other, LIBRARY)).result(120), Measured)
    assert not stuck.done()
    dispatcher.close()
    assert (one.is_closed, other.is_closed) == (True, True)


def test_a_target_that_nobody_serves_is_not_found(dispatcher: LocalDispatcher) -> None:
    for find in (dispatcher.lane, dispatcher.builds):
        with pytest.raises(NotFound, match="no worker serves h200; available are: simulated:h200"):
            find("h200")


def test_closing_ends_the_evaluator_and_cancels_what_waits(watched: Watched, dispatcher: LocalDispatcher) -> None:
    lane, builds = dispatcher.lane(TARGET_ID), dispatcher.builds(TARGET_ID)
    lane.environment()
    running, waiting = (lane.measure(PROBLEM, prepared_of(watched, LIBRARY)) for _ in range(2))
    unbuilt = [builds.prepare(PROBLEM, OURS[0]) for _ in range(20)][-1]
    wait_until(lambda: watched.num_measuring == 1)
    dispatcher.close()
    assert watched.is_closed
    assert running.done()
    for future in (waiting, unbuilt):
        with pytest.raises(CancelledError):
            future.result(0)
