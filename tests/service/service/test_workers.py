"""Two GPUs of one model: two runners draw from one queue, and never the same candidate."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import Latch, evaluator, finish
from tests.support.builders import spec
from tests.support.waiting import wait_until
from tuner.core.trial.job import JobState
from tuner.core.trial.records import InspectionKind
from tuner.service.concurrency.claims import Claims
from tuner.store.jobs import queue


@pytest.mark.slow
def test_two_workers_of_one_target_take_different_jobs_at_a_time(serve: Serve) -> None:
    latches = Latch(), Latch()
    service = serve(*latches)
    jobs = [service.submit(spec(m, trials=3))[0] for m in (16, 32, 64)]
    assert all(latch.is_reached.wait(60) for latch in latches)
    states = [service.job(job.id).state for job in jobs]
    assert states == [JobState.SEARCHING, JobState.SEARCHING, JobState.QUEUED]
    latches[1].is_open.set()
    assert finish(service, jobs[2]).state is JobState.SUCCEEDED, "the free worker processes the rest"
    assert service.job(jobs[0].id).num_trials + service.job(jobs[1].id).num_trials == 3
    latches[0].is_open.set()
    for job in jobs:
        ended = finish(service, job)
        assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 3)
    assert [target.id for target, _ in service.targets()] == ["simulated:h200"]


# In CI, test_kill.py restarts a server with a job under way.
@pytest.mark.soak
def test_jobs_that_were_under_way_are_shared_out_after_a_restart(serve: Serve) -> None:
    latches = Latch(), Latch()
    service = serve(*latches)
    jobs = [service.submit(spec(m, trials=6))[0] for m in (16, 32)]
    assert all(latch.is_reached.wait(60) for latch in latches)
    latches = Latch(), Latch()
    service = serve(*latches)
    assert all(latch.is_reached.wait(60) for latch in latches), "both were continued, each by a different worker"
    for latch in latches:
        latch.is_open.set()
    for job in jobs:
        ended = finish(service, job)
        assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 6)
        assert [trial.number for trial in service.trials(job.id).items] == list(range(6))


# In CI, test_inspections.py has one that another runner has taken.
@pytest.mark.soak
def test_an_inspection_is_taken_once_though_two_workers_are_idle(serve: Serve) -> None:
    service = serve(evaluator(), evaluator())
    jobs = [finish(service, service.submit(spec(m, trials=8))[0]) for m in (16, 32)]

    def is_done() -> bool:
        taken = [inspection for job in jobs for inspection in service.inspections(job.id, range(8))]
        return all(inspection.finished_at for inspection in taken)

    wait_until(is_done)
    taken = [inspection for job in jobs for inspection in service.inspections(job.id, range(8))]
    assert {inspection.num_attempts for inspection in taken} == {1}
    assert {inspection.kind for inspection in taken} == set(InspectionKind)


def test_what_is_held_is_offered_to_nobody_else_until_it_is_let_go(serve: Serve) -> None:
    service = serve()
    job = finish(service, service.submit(spec(trials=1))[0])
    held = Claims().jobs
    with held.take(lambda taken: None if job.id in taken else job) as first:
        assert first == job
        with held.take(lambda taken: None if job.id in taken else job) as second:
            assert second is None
    with held.take(lambda taken: None if job.id in taken else job) as third:
        assert third == job


# In CI, tests/unit/service/test_runner.py counts what wakes it.
@pytest.mark.soak
def test_an_idle_worker_is_woken_by_jobs_and_not_by_the_trials_of_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, next_open = Counter[str](), queue.next_open

    def counted(*given: Any, **named: Any) -> Any:
        questions[threading.current_thread().name] += 1
        return next_open(*given, **named)

    monkeypatch.setattr(queue, "next_open", counted)
    monkeypatch.setattr("tuner.service.runner.runner._ASK_AGAIN_S", 600.0)
    service = serve(evaluator(), evaluator())
    finish(service, service.submit(spec(16, trials=40))[0])
    assert len(questions) == 2
    assert max(questions.values()) < 20, "it looks for work after every trial"
    for m in (32, 64):
        finish(service, service.submit(spec(m, trials=3))[0])
