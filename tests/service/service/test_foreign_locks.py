"""Another program locks the database, or the disk is full: the service reports it, keeps its data, and continues."""

from __future__ import annotations

import logging
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from tests.service.service.helpers import evaluator, on_disk
from tests.support.builders import spec
from tests.support.serving import Server, body, listening, wait_until_final
from tests.support.waiting import wait_until
from tuner.core.trial.evaluator import Quarantine
from tuner.core.trial.job import JobState
from tuner.dispatch import LocalDispatcher
from tuner.errors import StoreUnavailable
from tuner.service import Service
from tuner.store import Store
from tuner.store.jobs import jobs

TWIN = ("--gpu", "simulated:h200")


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """A write transaction of another program."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=20)) as stranger:
        stranger.execute("begin immediate")
        stranger.execute("update jobs set reason = reason")
        yield
        stranger.execute("commit")


def pair(m: int) -> dict[str, Any]:
    return body()["pair"] | {"m": m}


def poll(url: str, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/jobs/{job['id']}", timeout=120).json()
    return found


def until_final(url: str, job: dict[str, Any]) -> dict[str, Any]:
    wait_until(lambda: poll(url, job)["state"] in ("succeeded", "failed", "cancelled"))
    return poll(url, job)


@pytest.mark.slow
def test_foreign_locks_during_a_job_cost_no_trial_and_end_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, *TWIN, TUNER_SIMULATED_LATENCY_S="0.1", TUNER_LOCK_PATIENCE_S="0.2") as server:
        job = httpx.post(f"{server.url}/jobs", json=body(budget={"trials": 16})).json()
        for lock_s in (0.1, 0.5, 0.5, 1.0):  # locked for less and for more time than the service waits
            with locked(data / "tuner.db"):
                time.sleep(lock_s)
            time.sleep(0.1)
        ended = until_final(server.url, job)
        numbers = [trial["number"] for trial in httpx.get(f"{server.url}/jobs/{job['id']}/trials").json()["items"]]
        assert httpx.get(f"{server.url}/livez").status_code == 200
    assert (ended["state"], ended["num_trials"], ended["reason"]) == ("succeeded", 16, "")
    assert numbers == list(range(16))


@pytest.mark.slow
def test_a_request_waits_for_a_short_lock_and_is_told_of_a_long_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, *TWIN, TUNER_LOCK_PATIENCE_S="0.5") as server:
        with locked(data / "tuner.db"):
            began = time.monotonic()
            refused = httpx.post(f"{server.url}/jobs", json=body(pair=pair(17)), timeout=120)
            assert 0.4 < time.monotonic() - began < 30, "as long as its patience, not as long as the lock"
            assert httpx.get(f"{server.url}/jobs").status_code == 200, "readers do not wait for a writer"
        assert refused.status_code == 503
        assert "locked" in refused.json()["detail"]
        assert "try again" in refused.json()["detail"]
        assert httpx.post(f"{server.url}/jobs", json=body(pair=pair(17))).status_code == 202


def limit_files(server: Server, num_bytes: int) -> None:
    """Limits the size of the server's files, which has the same effect as a full disk."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_a_disk_without_room_is_told_and_the_job_goes_on_by_itself_when_there_is_room_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, *TWIN, TUNER_SIMULATED_LATENCY_S="0.4") as server:
        job = httpx.post(f"{server.url}/jobs", json=body(budget={"trials": 12})).json()
        wait_until(lambda: poll(server.url, job)["num_trials"] > 3)
        limit_files(server, 4096)
        wait_until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
        kept = poll(server.url, job)["num_trials"]
        refused = httpx.post(f"{server.url}/jobs", json=body(pair=pair(17)))
        assert refused.status_code == 503, refused.text
        assert "disk" in refused.json()["detail"]
        assert httpx.get(f"{server.url}/livez").status_code == 200, "a restart would not help"
        assert 0 < poll(server.url, job)["num_trials"] - kept + 1 < 3
        limit_files(server, resource.RLIM_INFINITY)
        ended = until_final(server.url, job)
        assert (ended["state"], ended["num_trials"], ended["reason"]) == ("succeeded", 12, "")
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert on_disk(data, "select count(*) from trials") == 12
        assert httpx.post(f"{server.url}/jobs", json=body(pair=pair(17))).status_code == 202


def insert_many(store: Store) -> None:
    with store.write() as session:
        for m in range(1, 200):
            jobs.insert(session, spec(m), 1.0)


def test_a_full_database_is_told_leaves_nothing_behind_and_takes_writes_when_it_has_room(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    allowed = on_disk(tmp_path / "data", "pragma page_count")
    store.engine.dispose()

    @event.listens_for(store.engine, "connect")
    def limit(connection: Any, _record: Any) -> None:
        connection.execute(f"pragma max_page_count = {allowed}")

    with pytest.raises(StoreUnavailable, match=r"disk is full.*try again"):
        insert_many(store)
    with store.read() as session:
        assert jobs.page(session, None, 10, jobs.JobFilter()).items == []
    allowed = 1 << 20
    store.engine.dispose()
    with store.write() as session:
        jobs.insert(session, spec(), 1.0)
    store.close()


class Faulty(LocalDispatcher):
    """Crashes the runner that calls it: an unexpected error."""

    is_faulty = False

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        if self.is_faulty and worker is not None:
            raise RuntimeError("the dispatcher has an unexpected error")
        return super().quarantine(target_id, worker)


# In CI, tests/unit/service/test_runner.py has such a runner.
@pytest.mark.soak
def test_a_runner_that_has_ended_fails_the_probe_of_life_which_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = Faulty([evaluator()])
    service = Service(Store.open(tmp_path / "data"), dispatcher)
    service.start()
    try:
        with listening(service) as url:
            assert httpx.get(f"{url}/livez").status_code == 200
            with caplog.at_level(logging.CRITICAL):
                dispatcher.is_faulty = True
                wait_until(lambda: httpx.get(f"{url}/livez").status_code == 503)
            assert "has an unexpected error" in httpx.get(f"{url}/livez").json()["detail"]
            assert "restart the server" in httpx.get(f"{url}/livez").json()["detail"]
            assert httpx.get(f"{url}/readyz").status_code == 503
            assert "has an unexpected error" in caplog.text
            job = httpx.post(f"{url}/jobs", json=body()).json()
    finally:
        service.close()
    again = Service(Store.open(tmp_path / "data"), LocalDispatcher([evaluator()]))
    again.start()
    try:
        assert wait_until_final(again, job["id"]) == JobState.SUCCEEDED
    finally:
        again.close()
