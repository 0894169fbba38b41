"""Requirements on every build pool and every measure lane, as test classes that each implementation derives from.

A derived class provides the fixtures `pool` or `lane`, around the evaluators of this module: `Watched` records its
calls, and a call proceeds when `may_go` is set.
"""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.support.builders import schedule, workload
from tests.support.waiting import wait_until
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Environment, Preparation, Prepared, Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Measured, Outcome, Rejected
from tuner.dispatch import BuildPool, MeasureLane
from tuner.errors import Quarantined, WorkerError
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

PROBLEM = Problem(workload=workload(), objective=Objective())
LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)
TARGET = parse_target("simulated:h200")
SPACE = Space(PROBLEM.workload, TARGET.gpu)
#: Legal candidates of different tilings.
OURS = tuple(fused(Schedule.of(tiling=tiling, ordering=SPACE.orderings(tiling)[0])) for tiling in SPACE.tilings[:6])


class Watched(SimulatedEvaluator):
    """Records its calls; each call proceeds when it is released."""

    def __init__(self, target_id: str = "simulated:h200", **options: Any) -> None:
        super().__init__(parse_target(target_id), faults=Faults(hang=0, crash=0, wrong_numbers=0), **options)
        self.threads: set[int] = set()
        self.num_preparing = 0
        self.most_preparing = 0
        self.num_measuring = 0
        self.measured: list[Candidate] = []
        self.may_go = threading.Event()
        self.is_closed = False
        self.broken_environments = 0
        #: What the next measurement raises.
        self.error: Exception | None = None
        self.is_fit = True
        self._lock = threading.Lock()

    def environment(self) -> Environment:
        if self.broken_environments:
            self.broken_environments -= 1
            raise WorkerError("the card does not answer")
        self.threads.add(threading.get_ident())
        return super().environment()

    def probe(self) -> None:
        if not self.is_fit:
            raise Quarantined("it is too slow")

    def prepare(self, problem: Problem, candidate: Candidate) -> Preparation:
        with self._lock:
            self.num_preparing += 1
            self.most_preparing = max(self.most_preparing, self.num_preparing)
        self.may_go.wait(120)
        with self._lock:
            self.num_preparing -= 1
        return super().prepare(problem, candidate)

    def measure(self, problem: Problem, prepared: Prepared, *incumbent: float | None) -> Outcome:
        self.num_measuring += 1
        assert self.num_measuring == 1, "two calls at a time"
        self.threads.add(threading.get_ident())
        self.may_go.wait(120)
        self.num_measuring -= 1
        if (error := self.error) is not None:
            self.error = None
            raise error
        self.measured.append(prepared.candidate)  # type: ignore[attr-defined]
        return super().measure(problem, prepared, *incumbent)

    def close(self) -> None:
        self.is_closed = True
        self.may_go.set()


def prepared_of(evaluator: SimulatedEvaluator, candidate: Candidate) -> Prepared:
    """Prepares a candidate without a pool."""
    prepared = SimulatedEvaluator.prepare(evaluator, PROBLEM, candidate)
    assert isinstance(prepared, Prepared)
    return prepared


class BuildPoolContract:
    """`pool` builds three candidates at a time with `watched`."""

    def test_it_builds_as_many_at_a_time_as_it_has_places_for(self, pool: BuildPool, watched: Watched) -> None:
        futures = [pool.prepare(PROBLEM, candidate) for candidate in OURS]
        wait_until(lambda: watched.num_preparing >= pool.num_places)
        watched.may_go.set()
        assert all(isinstance(future.result(120), Prepared) for future in futures)
        assert pool.num_places == 3

    def test_what_it_prepared_may_travel_and_is_measured_elsewhere(self, pool: BuildPool, watched: Watched) -> None:
        watched.may_go.set()
        prepared = pickle.loads(pickle.dumps(pool.prepare(PROBLEM, OURS[0]).result(120)))
        assert isinstance(SimulatedEvaluator(TARGET).measure(PROBLEM, prepared), Outcome)

    def test_a_refusal_is_an_outcome_and_no_error(self, pool: BuildPool, watched: Watched) -> None:
        watched.may_go.set()
        too_deep = fused(schedule(stages=1000))
        assert isinstance(pool.prepare(PROBLEM, too_deep).result(120), Rejected)

    def test_a_candidate_that_is_cancelled_before_its_turn_is_never_built(
        self, pool: BuildPool, watched: Watched
    ) -> None:
        futures = [pool.prepare(PROBLEM, OURS[0]) for _ in range(20)]
        wait_until(lambda: watched.num_preparing >= pool.num_places)
        assert futures[-1].cancel()
        watched.may_go.set()
        assert all(isinstance(future.result(120), Prepared) for future in futures[:-1])
        with pytest.raises(CancelledError):
            futures[-1].result(0)


class MeasureLaneContract:
    """`lane` measures with `watched`."""

    def test_calls_run_one_at_a_time_in_their_order_and_in_one_thread(
        self, lane: MeasureLane, watched: Watched
    ) -> None:
        futures = [lane.measure(PROBLEM, prepared_of(watched, candidate)) for candidate in OURS]
        lane.environment()
        watched.may_go.set()
        assert all(isinstance(future.result(120), Measured) for future in futures)
        assert watched.measured == list(OURS)
        assert len(watched.threads) == 1
        assert watched.threads != {threading.get_ident()}

    def test_the_environment_is_known_while_a_trial_runs(self, lane: MeasureLane, watched: Watched) -> None:
        lane.environment()
        running = lane.measure(PROBLEM, prepared_of(watched, LIBRARY))
        assert lane.environment().simulated
        assert not running.done()

    def test_a_call_that_is_cancelled_before_its_turn_never_reaches_the_card(
        self, lane: MeasureLane, watched: Watched
    ) -> None:
        running, waiting = (lane.measure(PROBLEM, prepared_of(watched, candidate)) for candidate in OURS[:2])
        wait_until(lambda: watched.num_measuring == 1)
        assert waiting.cancel()
        assert not running.cancel(), "it is at the card"
        watched.may_go.set()
        assert isinstance(running.result(120), Measured)
        assert watched.measured == [OURS[0]]

    def test_a_failure_of_the_worker_is_told_and_the_next_call_is_served(
        self, lane: MeasureLane, watched: Watched
    ) -> None:
        watched.may_go.set()
        watched.error = WorkerError("the card does not answer")
        with pytest.raises(WorkerError, match="does not answer"):
            lane.measure(PROBLEM, prepared_of(watched, OURS[0])).result(120)
        assert isinstance(lane.measure(PROBLEM, prepared_of(watched, OURS[0])).result(120), Measured)
        assert lane.quarantine is None

    def test_a_quarantine_lasts_until_a_probe_finds_the_card_fit(self, lane: MeasureLane, watched: Watched) -> None:
        watched.may_go.set()
        watched.error, watched.is_fit = Quarantined("wrong numbers"), False
        with pytest.raises(Quarantined):
            lane.measure(PROBLEM, prepared_of(watched, OURS[0])).result(120)
        assert lane.quarantine is not None
        since = lane.quarantine.since
        with pytest.raises(Quarantined):
            lane.probe().result(120)
        assert lane.quarantine is not None
        assert (lane.quarantine.reason, lane.quarantine.since) == ("it is too slow", since)
        watched.is_fit = True
        lane.probe().result(120)
        assert lane.quarantine is None

    def test_finals_files_and_inspections_come_through_the_same_line(self, lane: MeasureLane, watched: Watched) -> None:
        watched.may_go.set()
        assert len(lane.finals(PROBLEM, (LIBRARY, OURS[0]), 3).result(120).times_us) == 2
        assert "kernel.cu" in lane.artifact(PROBLEM, OURS[0], {}).result(120).files
        assert lane.energy(PROBLEM, OURS[0]).result(120).run_mj
        assert lane.count(PROBLEM, OURS[0], None).result(120).counters
        assert lane.trace(PROBLEM, OURS[0]).result(120).spans
