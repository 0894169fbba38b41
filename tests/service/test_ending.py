"""Stopping a server, gracefully at the first signal and immediately at the second, and clocks that jump."""

from __future__ import annotations

import itertools
import logging
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.service.service.helpers import Latch, evaluator, finish, on_disk
from tests.support.builders import spec
from tests.support.serving import Server, body
from tests.support.waiting import wait_until
from tuner.core.trial.job import JobState
from tuner.core.trial.records import InspectionKind
from tuner.dispatch import LocalDispatcher
from tuner.dispatch.late import LateDispatcher
from tuner.service import Service
from tuner.store import Store

pytestmark = pytest.mark.slow


def begin(server: Server) -> int:
    """Starts a job; returns its number of trials when the next one runs on the GPU."""
    job_id = str(httpx.post(f"{server.url}/jobs", json=body(budget={"trials": 40})).json()["id"])
    wait_until(lambda: httpx.get(f"{server.url}/jobs/{job_id}").json()["num_trials"] > 0)
    time.sleep(0.1)
    return int(httpx.get(f"{server.url}/jobs/{job_id}").json()["num_trials"])


@pytest.mark.slow
def test_the_trial_at_the_card_is_recorded_before_the_end_and_the_job_waits(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="1.0") as server:
        before = begin(server)
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()
    # One more trial, or two if another began between the check and the signal.
    assert on_disk(data, "select count(*) from trials") in (before + 1, before + 2)
    assert on_disk(data, "select state from jobs") == "searching"


# In CI, tests/unit/service/test_server.py has a second signal, and other tests the first.
@pytest.mark.soak
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="8") as server:
        begin(server)  # while the library occupied the card for 8 s, the next one was prepared
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 200
        assert "ends at once" in server.log.read_text()


def test_what_does_not_end_in_time_is_dropped(tmp_path: Path) -> None:
    latch = Latch()
    service = Service(Store.open(tmp_path / "data"), LocalDispatcher([latch]))
    service.start()
    job, _ = service.submit(spec(trials=5))
    assert latch.is_reached.wait(60)
    began = time.monotonic()
    service.drain(0.3)
    assert 0.3 <= time.monotonic() - began < 60, "it waited for the trial"
    service.close()
    assert on_disk(tmp_path / "data", "select count(*) from trials") == 0
    assert on_disk(tmp_path / "data", "select state from jobs") == str(JobState.SEARCHING)
    assert job.state is JobState.QUEUED


def test_an_idle_service_drains_at_once(tmp_path: Path) -> None:
    service = Service(Store.open(tmp_path / "data"), LocalDispatcher([evaluator()]))
    service.start()
    began = time.monotonic()
    service.drain(30)
    assert time.monotonic() - began < 20
    service.close()


def test_a_worker_that_comes_late_has_its_figures_and_after_the_drain_no_job(tmp_path: Path) -> None:
    for drains_first in (False, True):
        late = LateDispatcher()
        service = Service(Store.open(tmp_path / f"data{drains_first}"), late, leads=lambda: False)
        service.start()
        if drains_first:
            service.drain(1)
        job, _ = service.submit(spec(trials=3))
        late.fill(LocalDispatcher([evaluator()]))
        if drains_first:
            time.sleep(0.3)
            assert service.job(job.id).state is JobState.QUEUED
        else:
            assert b'tuner_quarantines_total{target="simulated:h200",worker="0"} 0.0' in service.metrics.text()
            assert finish(service, job).state is JobState.SUCCEEDED
        service.close()


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_clock_that_jumps_costs_no_trial_and_no_budget(tmp_path: Path, step_s: float) -> None:
    calls = itertools.count()
    service = Service(
        Store.open(tmp_path / "data"), LocalDispatcher([evaluator()]), clock=lambda: 1.8e9 + step_s * next(calls)
    )
    service.start()
    try:
        job = finish(service, service.submit(spec(trials=12, seconds=60))[0])
        assert (job.state, job.num_trials) == (JobState.SUCCEEDED, 12)
        assert 0 <= job.search_s < 60
        assert b"tuner_queue_age_seconds" in service.metrics.text()
    finally:
        service.close()


# In CI, test_inspections.py closes in the middle of an inspection.
@pytest.mark.soak
def test_closing_at_any_moment_of_an_inspection_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    service = Service(Store.open(tmp_path / "data"), LocalDispatcher([evaluator()]))
    service.start()
    job = finish(service, service.submit(spec(trials=12))[0])
    service.close()
    for moment in range(12):
        service = Service(Store.open(tmp_path / "data"), LocalDispatcher([evaluator()]))
        for trial in service.trials(job.id, outcome="measured").items:
            if trial.candidate.plan_kind.is_ours:
                service.ask_inspection(job.id, trial.number, InspectionKind.TRACE)
        service.start()
        time.sleep(0.004 * moment)
        service.close()
    assert [record.getMessage() for record in caplog.records] == []
