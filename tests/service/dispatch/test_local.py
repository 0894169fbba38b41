from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from tests.support.builders import workload
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment, Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Measured, Outcome
from tuner.dispatch import LocalDispatcher
from tuner.errors import NotFound, WorkerError
from tuner.workers.simulated.evaluator import SimulatedEvaluator

PROBLEM = Problem(workload=workload(), objective=Objective())
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)


class Watched(SimulatedEvaluator):
    """Notes who calls it; evaluates when let."""

    def __init__(self, target_id: str = "simulated:h200") -> None:
        super().__init__(parse_target(target_id))
        self.threads: set[int] = set()
        self.num_inside = 0
        self.may_go = threading.Event()
        self.is_closed = False
        self.broken_environments = 0

    def environment(self) -> Environment:
        if self.broken_environments:
            self.broken_environments -= 1
            raise WorkerError("the card does not answer")
        self.threads.add(threading.get_ident())
        return super().environment()

    def evaluate(self, problem: Problem, candidate: Candidate, *incumbent: float | None, **asked: bool) -> Outcome:
        self.num_inside += 1
        assert self.num_inside == 1, "two calls at a time"
        self.threads.add(threading.get_ident())
        self.may_go.wait(10)
        self.num_inside -= 1
        return super().evaluate(problem, candidate, *incumbent, **asked)

    def close(self) -> None:
        self.is_closed = True
        self.may_go.set()


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def dispatcher(watched: Watched) -> Iterator[LocalDispatcher]:
    dispatcher = LocalDispatcher([watched])
    yield dispatcher
    dispatcher.close()


def test_an_evaluator_gets_one_call_at_a_time_all_in_one_thread(watched: Watched, dispatcher: LocalDispatcher) -> None:
    futures = [dispatcher.evaluate("simulated:h200", PROBLEM, LIBRARY) for _ in range(5)]
    dispatcher.environment("simulated:h200")
    watched.may_go.set()
    assert all(isinstance(future.result(10), Measured) for future in futures)
    assert len(watched.threads) == 1
    assert watched.threads != {threading.get_ident()}


def test_the_environment_is_known_while_a_trial_runs(watched: Watched, dispatcher: LocalDispatcher) -> None:
    dispatcher.environment("simulated:h200")
    running = dispatcher.evaluate("simulated:h200", PROBLEM, LIBRARY)
    assert dispatcher.environment("simulated:h200").simulated
    assert not running.done()


def test_an_environment_that_could_not_be_read_is_asked_for_again() -> None:
    watched = Watched()
    watched.broken_environments = 1
    dispatcher = LocalDispatcher([watched])
    with suppress(WorkerError):  # unless the first call comes after the failure, and so asks again at once
        dispatcher.environment("simulated:h200")
    assert dispatcher.environment("simulated:h200").simulated
    dispatcher.close()


def test_targets_work_side_by_side() -> None:
    one, other = Watched(), Watched("simulated:a40")
    dispatcher = LocalDispatcher([one, other])
    stuck = dispatcher.evaluate("simulated:h200", PROBLEM, LIBRARY)
    other.may_go.set()
    assert isinstance(dispatcher.evaluate("simulated:a40", PROBLEM, LIBRARY).result(10), Measured)
    assert not stuck.done()
    assert [target.id for target in dispatcher.targets] == ["simulated:h200", "simulated:a40"]
    dispatcher.close()


def test_two_evaluators_of_one_target_work_side_by_side_and_are_one_target() -> None:
    one, other = Watched(), Watched()
    dispatcher = LocalDispatcher([one, other])
    assert [target.id for target in dispatcher.targets] == ["simulated:h200"]
    assert (dispatcher.num_workers("simulated:h200"), dispatcher.num_workers("h200")) == (2, 0)
    stuck = dispatcher.evaluate("simulated:h200", PROBLEM, LIBRARY)
    other.may_go.set()
    assert isinstance(dispatcher.evaluate("simulated:h200", PROBLEM, LIBRARY, worker=1).result(10), Measured)
    assert not stuck.done()
    dispatcher.close()
    assert (one.is_closed, other.is_closed) == (True, True)


def test_a_target_that_nobody_serves_is_not_found(dispatcher: LocalDispatcher) -> None:
    with pytest.raises(NotFound, match="no worker serves h200; here are: simulated:h200"):
        dispatcher.evaluate("h200", PROBLEM, LIBRARY)


def test_closing_ends_the_evaluator_and_cancels_what_waits(watched: Watched, dispatcher: LocalDispatcher) -> None:
    dispatcher.environment("simulated:h200")
    running, waiting = (dispatcher.evaluate("simulated:h200", PROBLEM, LIBRARY) for _ in range(2))
    while not watched.num_inside:
        time.sleep(0.001)
    dispatcher.close()
    assert watched.is_closed
    assert running.done()
    with pytest.raises(CancelledError):
        waiting.result(0)
