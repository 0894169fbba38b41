"""The whole service on a GPU: a job survives kill -9 and can be inspected, and its kernel runs from the zip alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.on_card import EXAMPLE
from tests.support.serving import body
from tuner.client import Client
from tuner.demo import running_server
from tuner.workers.host.cards import Card


def wait_for_end(client: Client, job_id: str) -> dict[str, Any]:
    for _ in client.events(job_id, timeout_s=120):
        pass
    return dict(client.job(job_id))


@pytest.mark.timeout(300)
def test_a_killed_server_goes_on_and_the_fetched_kernel_runs_from_its_zip_alone(card: Card, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data, "auto") as url, Client(url) as client:
        (target,) = client.targets()
        assert not target["environment"]["simulated"]
        job_id = client.submit(body(budget={"trials": 25, "seconds": 100}))["id"]
        while client.job(job_id)["num_trials"] < 8:
            time.sleep(0.05)
        before = recorded(client, job_id)
        kill_server(data)
        assert len(before) < 25, "the job had already ended"
    with running_server(data, "auto") as url, Client(url) as client:
        job = wait_for_end(client, job_id)
        assert (job["state"], job["num_trials"]) == ("succeeded", 25), job
        after = recorded(client, job_id)
        assert after[: len(before)] == before
        assert [trial["number"] for trial in after] == list(range(25))
        best = client.best(job_id)
        finalist = next(row["trial_number"] for row in best["finals"] if row["candidate"]["plan_kind"] == "fused")
        trace = client.trace(job_id, finalist, timeout_s=90)
        assert not trace["simulated"]
        assert len({span["sm"] for span in trace["spans"]}) > 1
        inspected = next(trial for trial in client.trials(job_id) if trial["number"] == finalist)
        outcome = inspected["outcome"]
        assert outcome["kind"] == "measured"
        assert "tail_share" in {metric["tag"] for metric in outcome["metrics"]}
        assert best["artifact"] is not None
        content = client.artifact(best["artifact"]["digest"]).content
    archive = tmp_path / "best.zip"
    archive.write_bytes(content)
    lone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([sys.executable, str(EXAMPLE), str(archive)], env=lone, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "relative error" in ran.stdout


def recorded(client: Client, job_id: str) -> list[dict[str, Any]]:
    """A job's trials as first recorded, without the metrics that inspections add later."""
    trials = list(client.trials(job_id))
    return [{**trial, "outcome": {**trial["outcome"], "metrics": None}} for trial in trials]


def kill_server(data: Path) -> None:
    """Sends SIGKILL to the server of the folder `data`, which its lock file names."""
    os.kill(int((data / "lock").read_text()), 9)
