"""What a runner does in a turn, and with which limits it searches. No job is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.support.builders import TARGET, failed, measured, schedule, spec, trial
from tests.support.serving import listening
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.records import JobRecord
from tuner.dispatch import LocalDispatcher
from tuner.errors import WorkerError
from tuner.service import Service
from tuner.service.concurrency.claims import Claims
from tuner.service.concurrency.clock_steps import ClockSteps
from tuner.service.metrics import Metrics
from tuner.service.runner import runner as module
from tuner.service.runner.pipeline import Arrival
from tuner.service.runner.runner import Runner
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.workers.simulated.evaluator import SimulatedEvaluator

Make = Callable[..., Runner]


@pytest.fixture
def make(store: Store) -> Iterator[Make]:
    """Makes runners, which are not started."""
    dispatcher = LocalDispatcher([SimulatedEvaluator(parse_target(TARGET))])

    def make(**options: Any) -> Runner:
        given = {"metrics": Metrics(store, dispatcher), "clock_steps": ClockSteps(store, lambda: 9.0), **options}
        return Runner(store, dispatcher, parse_target(TARGET), 0, Claims(), 0, FinalsProcedure(), **given)

    yield make
    dispatcher.close()


@pytest.fixture
def job(store: Store) -> JobRecord:
    """A job that is being searched."""
    with store.write() as session:
        return jobs.set_state(session, jobs.insert(session, spec(), 1.0).id, JobState.SEARCHING, 2.0)


class NoPipeline:
    """Has one arrival, and notes what it is told."""

    def __init__(self) -> None:
        candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=schedule())
        facts = {"num_known": 0, "chosen_at": 3.0, "card_s": 0.1, "lane": None}
        self._left = [Arrival(candidate=candidate, outcome=measured(5.0), **facts)]
        self.noted: list[str] = []

    def __enter__(self) -> NoPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def next(self, incumbent: float | None) -> Arrival | None:
        return self._left.pop() if self._left else None

    def record(self, trial: object) -> None:
        self.noted.append("record")

    def wind_up(self) -> None:
        self.noted.append("wind up")

    def end(self) -> None:
        self.noted.append("end")


def test_a_turn_is_for_ladders_then_jobs_and_for_inspections_if_there_is_nothing_else(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_work, done in ((1, ["ladder"]), (2, ["ladder", "job"]), (3, ["ladder", "job", "inspection"])):
        runner, asked = make(), list[str]()

        def take(name: str, asked: list[str] = asked, has_work: int = has_work) -> bool:
            asked.append(name)
            return len(asked) == has_work

        monkeypatch.setattr(runner._ladders, "take_one", lambda take=take: take("ladder"))
        monkeypatch.setattr(runner, "_work_on_next", lambda take=take: take("job"))
        monkeypatch.setattr(runner._inspector, "take_one", lambda take=take: take("inspection"))
        runner._turn()
        assert asked == done


def test_a_card_that_gets_a_job_helps_no_other_one(make: Make, job: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make()
    runner._helpers.lend(runner._lane)
    lent: list[int] = []
    monkeypatch.setattr(runner, "_work", lambda job: lent.append(len(runner._helpers._lent)))
    assert runner._work_on_next()
    assert lent == [0]


@pytest.mark.parametrize(
    ("patience", "num_since", "left_s", "noted"),
    [
        (3, 0, 60.0, ["record"]),
        (3, 3, 60.0, ["wind up", "record", "wind up"]),
        (None, 3, 60.0, ["record"]),
        (3, 0, 0.0, ["end", "record", "end"]),
    ],
    ids=["has time", "patience is over", "endless patience", "no time"],
)
def test_a_search_that_goes_on_keeps_its_count_its_patience_and_its_time(
    make: Make, store: Store, job: JobRecord, monkeypatch: pytest.MonkeyPatch, patience: int | None, num_since: int,
    left_s: float, noted: list[str],
) -> None:  # fmt: skip
    runner, pipeline = make(), NoPipeline()
    monkeypatch.setattr(runner, "_pipeline", lambda *_: pipeline)
    past = [trial(0, measured(9.0)), *(trial(1 + number, failed()) for number in range(num_since))]
    with store.write() as session:
        jobs.row_of(session, job.id).num_measured = len(past)
    works = store.commits.num_works
    runner._record_all(job, SimpleNamespace(), past, num_trials=99, left_s=left_s, patience=patience)  # type: ignore[arg-type]
    assert pipeline.noted == noted
    assert [one.number for one in runner._history(job.id)] == [len(past)]
    assert store.commits.num_works == works, "a trial wakes no idle runner"


def test_one_by_one_nothing_is_chosen_ahead(make: Make, job: JobRecord) -> None:
    for max_ahead, depth in ((0, 1), (1, 2)):
        pipeline = make(max_ahead=max_ahead)._pipeline(job, SimpleNamespace(), [], 30, tuple)  # type: ignore[arg-type]
        assert pipeline._ahead.depth == depth


def test_the_time_of_a_search_is_what_its_budget_and_its_deadline_leave(
    make: Make, store: Store, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, left_s, begun = make(clock=lambda: 100.0), list[float](), list[str]()

    class NoPrefetch:
        """Notes what is begun."""

        @contextmanager
        def search(self, order: object) -> Iterator[None]:
            begun.append("search")
            yield

        def begin(self, take: object) -> None:
            begun.append("the next job")

        def build(self, problem: object, candidates: object) -> None:
            begun.append("new kernels")

        def close(self) -> None:
            pass

    monkeypatch.setattr(runner, "_prefetch", NoPrefetch())
    monkeypatch.setattr(runner, "_record_all", lambda *_, **given: left_s.append(given["left_s"]))
    monkeypatch.setattr(module, "any_space_of", lambda *_: None)
    monkeypatch.setattr(module, "new_kernels", lambda *_: [])
    monkeypatch.setattr(runner._priors, "of", lambda *_: ())
    runner._search(job)
    runner._search(replace(job, search_s=599.0))
    runner._search(replace(job, deadline_at=107.0))
    assert left_s == [600.0, 1.0, 7.0]
    assert begun == ["search", "the next job"] * 3
    runner._search(replace(job, batch_step="search"))
    assert begun[6:] == ["search", "the next job", "new kernels"]


def test_a_runner_that_has_ended_by_a_fault_fails_the_probe_of_life_which_says_why(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make()

    def boom() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(runner, "_turn", boom)
    runner._run()
    assert runner.fault == "RuntimeError: boom"
    service = Service(store, LocalDispatcher([]))
    with listening(service) as url:
        assert httpx.get(f"{url}/livez").status_code == 200
        service._runners._runners.append(runner)
        for probe in ("livez", "readyz"):
            answer = httpx.get(f"{url}/{probe}")
            assert answer.status_code == 503
            assert "has stopped (RuntimeError: boom); restart the server" in answer.json()["detail"]
    with pytest.raises(WorkerError):
        service.check_alive()
    service._runners._runners.clear()
    service.close()


def test_a_runner_that_ends_with_its_service_has_no_fault(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make()

    def boom() -> None:
        runner.stop()
        raise RuntimeError("its worker was stopped")

    monkeypatch.setattr(runner, "_turn", boom)
    runner._run()
    assert runner.fault == ""
