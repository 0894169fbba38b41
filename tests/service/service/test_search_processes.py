"""A search whose process dies costs its job only time; if it dies every time, the job fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.service.service.helpers import evaluator, wait_until
from tests.support.builders import spec
from tests.support.serving import Server, body
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.trial.job import JobState, Trial
from tuner.dispatch import LocalDispatcher
from tuner.errors import SearchLost
from tuner.search import SearchOrder, SearchProcesses
from tuner.service import Service
from tuner.service.runner.searching import MOST_LOST, BegunSearch, Search
from tuner.store import Store

pytestmark = pytest.mark.slow

LIMIT_S = 120


@contextmanager
def service_with(path: Path, search: Search, latency_s: float = 0.0) -> Iterator[Service]:
    service = Service(Store.open(path), LocalDispatcher([evaluator(latency_s=latency_s)]), search=search)
    service.start()
    try:
        yield service
    finally:
        service.close()


def test_a_job_whose_search_is_killed_goes_on_from_its_trials(tmp_path: Path) -> None:
    processes = SearchProcesses(1)
    with service_with(tmp_path / "data", processes.search, latency_s=0.02) as service:
        job, _ = service.submit(spec(trials=8))
        wait_until(lambda: service.job(job.id).num_trials >= 3, LIMIT_S)
        for pid in processes.pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: service.job(job.id).state.is_final, LIMIT_S)
        ended = service.job(job.id)
        trials = service.trials(job.id, limit=100).items
        assert (ended.state, ended.reason, len(trials)) == (JobState.SUCCEEDED, "", 8)
        assert [trial.number for trial in trials] == list(range(8))
        assert len({trial.candidate for trial in trials}) == 8, "a candidate was tried again"
    processes.close()


# In CI, tests/unit/search/test_processes.py ends the processes of a server.
@pytest.mark.soak
@pytest.mark.parametrize("gpu", ["none", "simulated:h200"])
def test_only_a_server_that_takes_jobs_starts_a_process_that_searches(tmp_path: Path, gpu: str) -> None:
    with Server(tmp_path / "data", "--gpu", gpu, spawns=True) as server:
        assert bool(children_of(server.process.pid)) is (gpu != "none")


class Dying:
    """A search that may choose the library; then its process exits."""

    waits_for_all = False

    def __init__(self, is_first: bool) -> None:
        self._left = [LIBRARY] if is_first else []

    def ask(self) -> Candidate | None:
        if not self._left:
            raise SearchLost("its process has died")
        return self._left.pop()

    def foresee(self) -> Candidate | None:
        raise SearchLost("its process has died")

    def begin_with(self, priors: Sequence[Candidate]) -> None:
        assert not priors

    def tell(self, trial: Trial) -> None:
        assert trial.candidate == LIBRARY

    def think_ahead(self) -> bool:
        return False

    def wind_up(self) -> None:
        self._left.clear()


def test_a_search_that_is_lost_again_and_again_ends_its_job_and_no_other(tmp_path: Path) -> None:
    begun: list[int] = []

    @contextmanager
    def search(order: SearchOrder) -> Iterator[BegunSearch]:
        if order.workload.tile_ops[0].m == 32:
            yield order.begin()
            return
        begun.append(len(order.history))
        yield Dying(is_first=len(begun) == 1)

    with service_with(tmp_path / "data", search) as service:
        lost, _ = service.submit(spec(64, trials=6))
        other, _ = service.submit(spec(32, trials=4))
        wait_until(lambda: service.job(other.id).state.is_final, LIMIT_S)
        ended = service.job(lost.id)
        assert (ended.state, service.job(other.id).state) == (JobState.FAILED, JobState.SUCCEEDED)
        assert ended.reason == f"its search was lost {MOST_LOST} times in a row: its process has died"
        assert len(begun) >= MOST_LOST


# In CI, tests/unit/search/test_processes.py ends a process with its server.
@pytest.mark.soak
def test_a_server_searches_beside_itself_and_takes_its_processes_with_it(tmp_path: Path) -> None:
    asked = body(target="simulated:h200", budget={"trials": 500, "seconds": 600})
    with Server(tmp_path / "data", "--gpu", "simulated:h200", spawns=True, TUNER_SIMULATED_LATENCY_S="0.2") as server:
        job = httpx.post(f"{server.url}/jobs", json=asked, timeout=30).json()["id"]
        wait_until(lambda: httpx.get(f"{server.url}/jobs/{job}", timeout=30).json()["num_trials"] >= 2, LIMIT_S)
        own = children_of(server.process.pid)
        assert own
        server.process.kill()
        server.process.wait(LIMIT_S)
        wait_until(lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in own), LIMIT_S)


def children_of(pid: int) -> list[int]:
    """The child processes of `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found
