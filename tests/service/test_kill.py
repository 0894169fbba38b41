"""Nothing lost: the server is killed, and goes on."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.service.conftest import Serve
from tests.service.helpers import finish, wait_until
from tests.store.builders import spec
from tuner.core.job import JobState, Trial
from tuner.core.records import Event, JobRecord
from tuner.store import Store, events, jobs, trials

ROOT = Path(__file__).parents[2]


@contextmanager
def killed_afterwards(directory: Path, trial_s: float, finals_s: float = 0.0) -> Iterator[None]:
    """A server that runs inside the block; SIGKILL at its end."""
    command = [sys.executable, "-m", "tests.service.victim", str(directory), str(trial_s), str(finals_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"started\n"
            yield
        finally:
            server.kill()


def submit(directory: Path, num_trials: int) -> JobRecord:
    store = Store.open(directory)
    with store.write() as session:
        job = jobs.insert(session, spec(64, trials=num_trials), time.time())
    store.close()
    return job


def look(directory: Path, job_id: str) -> tuple[JobRecord, list[Trial], list[Event]]:
    """What a dead server left; opening it takes the lock that the dead one held."""
    store = Store.open(directory)
    with store.read() as session:
        found = jobs.get(session, job_id), trials.history(session, job_id), events.after(session, job_id, 0, 10_000)
    store.close()
    return found


def state_on_disk(directory: Path) -> str:
    """The only job's state, read beside a living server."""
    with closing(sqlite3.connect(f"file:{directory / 'tuner.db'}?mode=ro", uri=True)) as connection:
        return str(connection.execute("select state from jobs").fetchone()[0])


def numbers(told: list[Event]) -> list[int]:
    return [event.data["number"] for event in told if event.kind == "trial"]


def test_kills_at_random_moments_lose_no_trial_count_none_twice_and_the_job_succeeds(
    tmp_path: Path, serve: Serve
) -> None:
    directory, chance = tmp_path / "data", random.Random(20)
    job = submit(directory, num_trials=150)
    kept: list[Trial] = []
    for _ in range(6):
        with killed_afterwards(directory, trial_s=0.02):
            time.sleep(chance.uniform(0.05, 0.5))
        record, history, told = look(directory, job.id)
        assert history[: len(kept)] == kept, "a recorded trial is gone, or was changed"
        assert [trial.number for trial in history] == list(range(len(history)))
        assert numbers(told) == list(range(len(history))), "trials and their events disagree"
        assert record.num_trials == len(history)
        kept = history
    assert 0 < len(kept) < 150, "the kills did not hit the search: change the pauses"
    service = serve()
    ended = finish(service, job)
    assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 150)
    whole = service.trials(job.id, limit=500).items
    assert list(whole[: len(kept)]) == kept
    assert len({trial.candidate for trial in whole}) == 150, "a candidate was tried again"


def test_a_kill_in_the_finals_costs_the_finals_alone(tmp_path: Path, serve: Serve) -> None:
    directory = tmp_path / "data"
    job = submit(directory, num_trials=6)
    with killed_afterwards(directory, trial_s=0.0, finals_s=600.0):
        wait_until(lambda: state_on_disk(directory) == JobState.FINALS)
    record, kept, _ = look(directory, job.id)
    assert (record.state, record.num_trials) == (JobState.FINALS, 6)
    service = serve()
    assert finish(service, job).state is JobState.SUCCEEDED
    assert service.trials(job.id).items == kept
    assert service.best(job.id).artifact_digest is not None
    states = [event.data["state"] for event in service.events(job.id) if event.kind == "state"]
    assert states == ["queued", "searching", "finals", "succeeded"]
