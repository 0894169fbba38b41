"""`tuner db check`, `db backup`, `explain` and `gc` while a server works on jobs; none of them disturbs it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import pytest

from tests.service.service.helpers import on_disk
from tests.support.forked import Forked, command
from tests.support.serving import Server, body
from tests.support.waiting import wait_until
from tuner.store.database import Store
from tuner.store.engine.directory import DATABASE_FILE

pytestmark = pytest.mark.slow


def tuner(log: Path, *arguments: str) -> str:
    """The output of a `tuner` command in another process."""
    process = Forked(command, *arguments, log=log)
    assert process.wait(120) == 0, log.read_text()
    return process.printed


def submit(server: Server, **changes: object) -> str:
    answer = httpx.post(f"{server.url}/jobs", json=body(**changes))
    answer.raise_for_status()
    return str(answer.json()["id"])


def state_of(server: Server, job_id: str) -> str:
    return str(httpx.get(f"{server.url}/jobs/{job_id}").json()["state"])


# In CI, tests/service/test_doctor.py and the next test work beside a server.
@pytest.mark.soak
def test_check_backup_explain_and_gc_work_beside_a_server_whose_trials_all_stay(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "commands.log"
    with Server(data, "--gpu", "simulated:h200", TUNER_SIMULATED_LATENCY_S="0.1") as server:
        done = submit(server)
        wait_until(lambda: state_of(server, done) == "succeeded", 120)
        under_way = submit(server, seed=2, budget={"trials": 12, "seconds": 600})
        wait_until(lambda: state_of(server, under_way) == "searching", 60)
        assert "the counts agree" in tuner(log, "db", "check", "--data", str(data))
        assert " has 2 jobs and " in tuner(log, "db", "backup", str(tmp_path / "kept.zip"), "--data", str(data))
        assert "Bottleneck: " in tuner(log, "explain", done, "--data", str(data))
        assert "bytes are left" in tuner(log, "gc", "--limit", "1", "--data", str(data))
        assert (data / f"{DATABASE_FILE}-wal").exists()  # the server still has its locks and its log
        assert state_of(server, under_way) in ("searching", "finals", "succeeded")
        wait_until(lambda: state_of(server, under_way) == "succeeded", 120)
        trials = httpx.get(f"{server.url}/jobs/{under_way}").json()["num_trials"]
        assert on_disk(data, f"select count(*) from trials where job_id = '{under_way}'") == trials
        artifact = httpx.get(f"{server.url}/jobs/{under_way}/best").json()["artifact"]
        assert httpx.get(f"{server.url}{artifact['href']}").status_code == 200
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()
    restored = tmp_path / "restored"
    tuner(log, "db", "restore", str(tmp_path / "kept.zip"), "--data", str(restored))
    assert "2 jobs, " in tuner(log, "db", "check", "--data", str(restored))


def test_gc_beside_a_server_leaves_files_that_no_row_names_yet(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "commands.log"
    server = Store.open(data)
    new, old = (server.artifacts.path(server.artifacts.put(content)) for content in (b"new", b"old"))
    os.utime(old, (time.time() - 3600,) * 2)
    tuner(log, "gc", "--limit", "1", "--data", str(data))
    assert (new.exists(), old.exists()) == (True, False)
    server.close()
    tuner(log, "gc", "--limit", "1", "--data", str(data))
    assert not new.exists()
