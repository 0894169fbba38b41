"""The candidates of a search on their way: in which order they are chosen, what a lost worker or card costs, and what a
helper's card may decide. Nothing is built or measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pytest

from tests.support.builders import TARGET, failed, measured, schedule, trial, workload
from tuner.core.insight.forecast_quality import forecast_of
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Prepared, Problem
from tuner.core.trial.job import Objective, Trial
from tuner.core.trial.outcome import Failed, Measured, Outcome
from tuner.errors import Quarantined, WorkerError
from tuner.service.concurrency import waiting
from tuner.service.runner import pipeline
from tuner.service.runner.ahead import Ahead

LIBRARY = Candidate(plan_kind=PlanKind.LIBRARY)
OURS = [Candidate(plan_kind=PlanKind.FUSED, schedule=schedule(stages)) for stages in range(2, 12)]
GOOD = measured(5.0)
Said = Outcome | Exception


def answer(future: Future[Any], said: Any) -> Future[Any]:
    if isinstance(said, Exception):
        future.set_exception(said)
    else:
        future.set_result(said)
    return future


class Chooser:
    """Chooses the library, then each of ours; the last `num_alone` wait until nothing is on its way."""

    def __init__(self, num: int, num_alone: int = 0) -> None:
        self.left, self._num_alone = [LIBRARY, *OURS[: num - 1]], num_alone
        self.num_known = 0
        #: Set when a trial was recorded.
        self.recorded = threading.Event()

    @property
    def waits_for_all(self) -> bool:
        return len(self.left) <= self._num_alone

    def ask(self) -> Candidate | None:
        return self.left.pop(0) if self.left else None

    def tell(self, trial: Trial) -> None:
        self.num_known += 1

    def think_ahead(self) -> bool:
        return False

    def wind_up(self) -> None:
        self.left.clear()


class Patiently(Chooser):
    """Has nothing to choose until it knows of another trial."""

    def ask(self) -> Candidate | None:
        return super().ask() if len(self.left) + self.num_known == 4 else None


class Slowly(Patiently):
    """While it finds that it needs another trial, that one arrives and is recorded."""

    def ask(self) -> Candidate | None:
        if (chosen := super().ask()) is None and Lane.under_way:
            self.recorded.clear()
            answer(*Lane.under_way.pop())
            assert self.recorded.wait(20)
        return chosen


class Builds:
    """Prepares at once; `said` are the first answers, others are good."""

    num_places = 4

    def __init__(self, *said: Exception) -> None:
        self._said, self.num_asked = list(said), 0

    def prepare(self, problem: Problem, candidate: Candidate) -> Future[Any]:
        self.num_asked += 1
        forecast_us = 7.0 if candidate.plan_kind.is_ours else None
        return answer(Future(), self._said.pop(0) if self._said else Prepared(forecast_us=forecast_us))


class Lane:
    """Measures while nothing else is done; `said` answers the measurement of that number, from 0 on."""

    #: What is measured, with its answer, the oldest first.
    under_way: list[tuple[Future[Any], Said]]

    def __init__(self, said: Callable[[int], Said] = lambda number: GOOD) -> None:
        self.target, self.worker, self._said, self.num_asked = parse_target(TARGET), 0, said, 0

    def measure(self, problem: Problem, prepared: Prepared, incumbent: float | None) -> Future[Any]:
        future = Future[Any]()
        self.under_way.append((future, self._said(self.num_asked)))
        self.num_asked += 1
        return future


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card is slower than the search: a measurement ends when nothing is left to choose, and a quarantine comes
    together with the outcome before it."""
    monkeypatch.setattr(waiting, "RETRY_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(Lane, "under_way", under_way := list[tuple[Future[Any], Said]](), raising=False)

    def wait_for_one(futures: Collection[Future[Any]], stop: threading.Event) -> None:
        measuring = {future for future, _ in under_way}
        if any(future not in measuring for future in futures):
            wait(futures, return_when=FIRST_COMPLETED)
        elif under_way:
            answer(*under_way.pop(0))
            if under_way and isinstance(under_way[0][1], Quarantined):
                answer(*under_way.pop(0))

    monkeypatch.setattr(pipeline, "wait_for_one", wait_for_one)


def arrivals(
    chooser: Chooser, *, builds: Builds | None = None, lane: Lane | None = None, helper: Lane | None = None
) -> tuple[list[pipeline.Arrival], Exception | None]:
    """All that arrives, and what ends it."""
    num = len(chooser.left)
    on_their_way = pipeline.Pipeline(
        chooser,
        Problem(workload=workload(), objective=Objective()),
        builds or Builds(),  # type: ignore[arg-type]
        lane or Lane(),  # type: ignore[arg-type]
        Ahead(num_places=4, num_trials=30),
        num_known=0,
        num_trials=num,
        stop=threading.Event(),
        helpers=lambda: [helper] if helper else [],  # type: ignore[list-item]
    )
    found = list[pipeline.Arrival]()
    with on_their_way:
        try:
            while (arrival := on_their_way.next(None)) is not None:
                on_their_way.record(trial(len(found), arrival.outcome))
                chooser.recorded.set()
                found.append(arrival)
        except (WorkerError, waiting.JobFailed) as error:
            return found, error
    return found, None


def test_a_choice_that_waits_for_all_is_made_when_nothing_is_on_its_way() -> None:
    found, ended = arrivals(Chooser(8, num_alone=3))
    assert (ended, [one.candidate for one in found]) == (None, [LIBRARY, *OURS[:7]])
    assert [one.num_known for one in found][5:] == [5, 6, 7]


@pytest.mark.parametrize("kind", [Patiently, Slowly])
def test_a_search_that_needs_another_trial_is_asked_again_whatever_became_of_the_last(kind: type[Patiently]) -> None:
    found, ended = arrivals(kind(4), lane=Lane(lambda number: failed() if number else GOOD))
    assert (ended, len(found)) == (None, 4)
    assert [type(one.outcome) for one in found] == [Measured, Failed, Failed, Failed]


def test_a_measured_candidate_keeps_its_forecast() -> None:
    found, _ = arrivals(Chooser(2))
    assert [forecast_of(one.outcome) for one in found] == [None, 7.0]


@pytest.mark.parametrize("where", ["build", "card"])
def test_a_lost_worker_that_comes_back_costs_no_trial_and_one_that_stays_away_ends_the_job(where: str) -> None:
    def asked(num_failures: int) -> tuple[list[pipeline.Arrival], Exception | None]:
        lost = [WorkerError(f"{number}. loss") for number in range(num_failures)]
        if where == "build":
            return arrivals(Chooser(3), builds=Builds(*lost))
        return arrivals(Chooser(3), lane=Lane(lambda number: lost[number] if number < num_failures else GOOD))

    found, ended = asked(2)
    assert (ended, [one.candidate for one in found]) == (None, [LIBRARY, *OURS[:2]])
    found, ended = asked(9)
    assert (found, isinstance(ended, waiting.JobFailed)) == ([], True)
    assert "failed 3 times: 2. loss" in str(ended)


def test_what_was_measured_before_a_quarantine_arrives_and_nothing_else() -> None:
    """The last outcome and the quarantine are seen together."""
    chooser, sick = Chooser(6), Quarantined("345 of 1980 MHz")
    found, ended = arrivals(chooser, lane=Lane(lambda number: GOOD if number < 4 else sick))
    assert (ended, len(found)) == (sick, 4)
    assert [one.candidate for one in found] == [LIBRARY, *OURS[:3]]


@pytest.mark.parametrize("said", [failed(), WorkerError("the card does not answer")], ids=["failure", "worker"])
def test_what_a_helper_cannot_measure_the_jobs_own_card_does(said: Said) -> None:
    own, helper = Lane(), Lane(lambda number: said)
    found, ended = arrivals(Chooser(8), lane=own, helper=helper)
    assert (ended, own.num_asked, len(found)) == (None, 8, 8)
    assert {type(one.outcome) for one in found} == {Measured}
    assert helper.num_asked > 0
    if isinstance(said, Exception):
        assert helper.num_asked <= 2, "it is asked no more"


def test_what_a_helper_measures_says_so_and_the_library_is_measured_by_the_jobs_own_card() -> None:
    own, helper = Lane(), Lane()
    found, _ = arrivals(Chooser(8), lane=own, helper=helper)
    helped = [any(metric.tag == "by_helper" for metric in one.outcome.metrics) for one in found]  # type: ignore[union-attr]
    assert (sum(helped), helped[0], own.num_asked + helper.num_asked) == (helper.num_asked, False, 8)
    assert 0 < helper.num_asked < 8
