"""A service with one finished job, and one that never runs anything; each has a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serving import body, listening, running_service, wait_until_final, wait_until_inspected
from tuner.core.problem.gpu import parse_target
from tuner.service import Service
from tuner.workers.simulated.evaluator import SimulatedEvaluator

#: Trials of the finished job: enough for a turn of every plan kind.
NUM_TRIALS = 16
#: Seed of a simulated card whose random faults leave every plan kind a measured trial.
TWIN_SEED = 1


@dataclass(frozen=True, kw_only=True)
class Api:
    """A client of a server in this process, and the server's service."""

    http: httpx.Client
    service: Service
    #: A job that has succeeded; empty if nothing is measured.
    job_id: str = ""

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a page that must exist."""
        response = self.http.get(path, **options)
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def serving(path: Path, **options: Any) -> Iterator[Api]:
    """A service and a client of it."""
    with (
        running_service(path, **options) as service,
        listening(service) as url,
        httpx.Client(base_url=url) as http,
    ):
        yield Api(http=http, service=service)


@contextmanager
def measuring(path: Path) -> Iterator[Api]:
    """A service that has run a job."""
    with serving(path, evaluators=[twin()]) as api:
        job_id = api.http.post("/jobs", json=body(budget={"trials": NUM_TRIALS})).json()["id"]
        assert wait_until_final(api.service, job_id) == "succeeded"
        wait_until_inspected(api.service, job_id)
        yield replace(api, job_id=job_id)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with finished measurements, and the id of their job."""
    folder = tmp_path_factory.mktemp("measured") / "data"
    with measuring(folder) as api:
        return folder, api.job_id


@pytest.fixture(scope="module")
def api(measured: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with finished measurements, in a copy of their folder."""
    folder, job_id = measured
    copied = shutil.copytree(folder, tmp_path_factory.mktemp("api") / "data")
    with serving(copied, evaluators=[twin()]) as api:
        yield replace(api, job_id=job_id)


def twin() -> SimulatedEvaluator:
    """The simulated card."""
    return SimulatedEvaluator(parse_target("simulated:h200"), seed=TWIN_SEED)


@pytest.fixture
def slow_api(tmp_path: Path) -> Iterator[Api]:
    """A service whose trials are slow enough for a job to stay open."""
    with serving(tmp_path / "data", latency_s=0.1) as api:
        yield api


@pytest.fixture(scope="module")
def idle_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service without a GPU."""
    with serving(tmp_path_factory.mktemp("idle") / "data", target=None) as api:
        yield api
