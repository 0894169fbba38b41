"""PostgreSQL is temporarily unavailable. The server that ran the jobs exits, and a second one takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.postgres import postgresql
from tests.support.serving import Server, body

LIMIT_S = 150


def until(found: Callable[[], Any], is_right: Callable[[Any], bool]) -> Any:
    end = time.monotonic() + LIMIT_S
    while not is_right(seen := found()):
        assert time.monotonic() < end, seen
        time.sleep(0.1)
    return seen


@pytest.mark.slow
def test_a_job_goes_on_by_itself_when_the_database_is_back(tmp_path: Path) -> None:
    asked = body(target="simulated:h200", budget={"trials": 20, "seconds": 600})
    with postgresql() as database, ExitStack() as stack:
        options = ["--standby", "--gpu", "simulated:h200", "--database-url", database.database()]
        environment = {"TUNER_SIMULATED_LATENCY_S": "0.2", "TUNER_LOCK_PATIENCE_S": "2"}
        leader = stack.enter_context(Server(tmp_path / "data", *options, **environment))
        until(lambda: httpx.get(f"{leader.url}/targets", timeout=60).json(), bool)
        other = stack.enter_context(Server(tmp_path / "data", *options, **environment))
        job = httpx.post(f"{leader.url}/jobs", json=asked, timeout=60).json()["id"]

        def trials() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = httpx.get(f"{other.url}/jobs/{job}/trials", timeout=60).json()["items"]
            return found

        until(trials, lambda found: len(found) >= 3)
        kept = trials()
        database.stop_in_order()

        assert leader.process.wait(LIMIT_S) == 0, "two servers must not both run the jobs"
        assert "has dropped this server's lock" in leader.log.read_text()
        for request in (("GET", "/jobs"), ("GET", "/readyz"), ("POST", "/jobs")):
            content = asked if request[0] == "POST" else None
            refused = httpx.request(request[0], other.url + request[1], json=content, timeout=60)
            assert refused.status_code == 503, refused.text
            assert "the database does not respond" in refused.json()["detail"]
        assert httpx.get(f"{other.url}/livez", timeout=60).status_code == 200

        database.start()
        ended = until(
            lambda: httpx.get(f"{other.url}/jobs/{job}", timeout=60).json(),
            lambda found: found.get("state") in ("succeeded", "failed"),
        )
        assert (ended["state"], ended["num_trials"]) == ("succeeded", 20), ended
        after = trials()
        assert [one["number"] for one in after] == list(range(20))
        assert [one["finished_at"] for one in after[: len(kept)]] == [one["finished_at"] for one in kept]


# In CI, test_standby.py has a server alone that takes its dropped lock back, and the test above a database that ends.
@pytest.mark.soak
@pytest.mark.slow
def test_a_server_alone_goes_on_with_its_job_when_the_database_is_back(tmp_path: Path) -> None:
    asked = body(target="simulated:h200", budget={"trials": 12, "seconds": 600})
    with postgresql() as database, ExitStack() as stack:
        options = ["--gpu", "simulated:h200", "--database-url", database.database()]
        environment = {"TUNER_SIMULATED_LATENCY_S": "0.2", "TUNER_LOCK_PATIENCE_S": "2"}
        server = stack.enter_context(Server(tmp_path / "data", *options, **environment))
        job = httpx.post(f"{server.url}/jobs", json=asked, timeout=60).json()["id"]
        until(lambda: httpx.get(f"{server.url}/jobs/{job}", timeout=60).json()["num_trials"], lambda found: found >= 3)
        database.stop_in_order()
        until(server.log.read_text, lambda found: "has dropped this server's lock" in found)
        assert httpx.get(f"{server.url}/readyz", timeout=60).status_code == 503
        database.start()
        until(server.log.read_text, lambda found: "has its lock again" in found)
        ended = until(
            lambda: httpx.get(f"{server.url}/jobs/{job}", timeout=60).json(),
            lambda found: found.get("state") in ("succeeded", "failed"),
        )
        assert (ended["state"], ended["num_trials"]) == ("succeeded", 12), ended
