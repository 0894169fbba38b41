"""The wall clock is set forward or back while jobs run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service.service.helpers import Latch, evaluator, finish
from tests.support.builders import spec
from tests.support.lanes import one_in
from tests.support.waiting import wait_until
from tuner.core.access.caller import SESSION_S
from tuner.core.trial.evaluator import Evaluator
from tuner.core.trial.job import JobState, JobTerms
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.service.concurrency.clock_steps import ClockSteps
from tuner.service.retention import Remover
from tuner.settings import Retention
from tuner.store import Store
from tuner.store.access import ended_sessions
from tuner.store.jobs import jobs
from tuner.wire.pages.charts import points_page

DEADLINE_S = 600.0


class Clock:
    """The machine's clock, which the test sets."""

    def __init__(self) -> None:
        self.step_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.step_s


@contextmanager
def serving(data: Path, clock: Clock, worker: Evaluator) -> Iterator[Service]:
    service = Service(Store.open(data), LocalDispatcher([worker]), clock=clock)
    service.start()
    try:
        yield service
    finally:
        service.close()


# In CI, test_ending.py has clocks that jump, and other tests deadlines.
@pytest.mark.soak
@pytest.mark.parametrize("step_s", one_in(2, [-7200.0, 7200.0]))
def test_a_step_costs_no_job_its_deadline_and_no_chart_its_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step_s: float
) -> None:
    clock, latch, terms = Clock(), Latch(num_free=3), JobTerms(deadline_s=DEADLINE_S)
    with serving(tmp_path / "data", clock, latch) as service, caplog.at_level(logging.WARNING):
        first, _ = service.submit(spec(16, trials=8), terms=terms)
        waiting, _ = service.submit(spec(32, trials=3), terms=terms)
        wait_until(lambda: service.job(first.id).num_trials >= 2)
        clock.step_s = step_s
        latch.is_open.set()
        for job, num_trials in ((first, 8), (waiting, 3)):
            ended = finish(service, job)
            assert (ended.state, ended.num_trials, ended.reason) == (JobState.SUCCEEDED, num_trials, "")
        moved_to = service.job(waiting.id).deadline_at
        assert moved_to == pytest.approx(waiting.created_at + DEADLINE_S + step_s, abs=5)
        found = service.charts.points(first.id)
        page = points_page(service.job(first.id), found.num_trials, found.points, found.stage_s, None)
    assert page.at_s == sorted(page.at_s)
    assert page.at_s[0] >= 0
    assert any(f"the clock jumped by {step_s:+.0f} s" in one.getMessage() for one in caplog.records)


def test_after_a_step_no_job_is_too_old_for_an_hour(tmp_path: Path) -> None:
    clock, steady_s = Clock(), [0.0]
    with serving(tmp_path / "data", clock, evaluator()) as service:
        finish(service, service.submit(spec(trials=3))[0])
    clock, store = Clock(), Store.open(tmp_path / "data")
    steps = ClockSteps(store, clock, lambda: steady_s[0])
    remover = Remover(store, Retention(days=1.0, keeps_best=False), clock, lambda: True, steps)
    clock.step_s = 30 * 86400.0
    steps.follow()
    assert remover.expire() == 0
    steady_s[0], clock.step_s = 3601.0, clock.step_s + 3601.0
    assert remover.expire() == 1
    store.close()


def test_a_clock_that_is_set_right_bit_by_bit_moves_no_deadline(store: Store) -> None:
    clock, steady_s = Clock(), [0.0]
    steps = ClockSteps(store, clock, lambda: steady_s[0] + time.time())
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0, "", JobTerms(deadline_s=5.0))
    for _ in range(10):
        clock.step_s += 1.0
        steps.follow()
    with store.read() as session:
        assert jobs.get(session, job.id).deadline_at == 6.0
    store.close()


def test_a_session_that_was_ended_is_forgotten_when_its_cookie_is_too_old_but_not_by_a_step(store: Store) -> None:
    clock, steady_s = Clock(), [0.0]
    steps = ClockSteps(store, clock, lambda: steady_s[0])
    remover = Remover(store, Retention(), clock, lambda: True, steps)
    with store.write() as session:
        ended_sessions.end(session, "a word", clock())

    def is_ended() -> bool:
        remover.forget_sessions()
        with store.read() as session:
            return ended_sessions.is_ended(session, "a word")

    clock.step_s = 3 * SESSION_S
    steps.follow()
    assert is_ended(), "the clock may be set back again"
    steady_s[0], clock.step_s = 3601.0, clock.step_s + 3601.0
    assert not is_ended()


@pytest.mark.parametrize("step_s", [7200.0, -7200.0])
def test_servers_of_one_machine_move_a_deadline_once_and_all_say_that_the_clock_was_set(
    store: Store, step_s: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.retention.PERIOD_S", 0.05)
    clock, leader = Clock(), ["first"]
    with store.write() as session:
        job = jobs.insert(session, spec(), 1.0, "", JobTerms(deadline_s=DEADLINE_S))
    deadline_at = job.deadline_at
    assert deadline_at is not None

    def server(name: str) -> Remover:
        steps = ClockSteps(store, clock, lambda: time.time())
        return Remover(store, Retention(), clock, lambda: leader == [name], steps)

    def steps_said() -> int:
        return sum(f"the clock jumped by {step_s:+.0f} s" in one.getMessage() for one in caplog.records)

    removers = [server("first"), server("second")]
    with caplog.at_level(logging.WARNING):
        for remover in removers:
            remover.start()
        clock.step_s = step_s
        wait_until(lambda: steps_said() == 2)
        leader[0] = "second"
        time.sleep(0.5)  # it leads, and checks its clock again
    for remover in removers:
        remover.stop()
        remover.join()
    with store.read() as session:
        assert jobs.get(session, job.id).deadline_at == pytest.approx(deadline_at + step_s, abs=1)
    assert steps_said() == 2
