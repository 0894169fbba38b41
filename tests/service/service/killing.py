"""A server that is killed, and the data that it leaves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.service import victim
from tests.service.service.helpers import on_disk
from tests.support.builders import spec
from tests.support.forked import Forked
from tests.support.serving import running_service
from tests.support.waiting import wait_until
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.records import Event, JobRecord
from tuner.store import Store
from tuner.store.jobs import events, jobs
from tuner.store.trials import trials


@contextmanager
def killed_afterwards(
    directory: Path,
    trial_s: float,
    finals_s: float = 0.0,
    counters_s: float = 0.0,
    build_s: float = 0.0,
    artifact_s: float = 0.0,
) -> Iterator[Forked]:
    """A server that runs inside the block and gets SIGKILL at its end."""
    seconds = (str(one) for one in (trial_s, finals_s, counters_s, build_s, artifact_s))
    server = Forked(victim.main, str(directory), *seconds, log=directory.with_suffix(".log"))
    try:
        assert server.line() == "started"
        yield server
    finally:
        server.kill()


def submit(directory: Path, num_trials: int) -> JobRecord:
    store = Store.open(directory)
    with store.write() as session:
        job = jobs.insert(session, spec(64, trials=num_trials), time.time())
    store.close()
    return job


def read_back(directory: Path, job_id: str) -> tuple[JobRecord, list[Trial], list[Event]]:
    """The data of a killed server; opening it takes over the lock."""
    store = Store.open(directory)
    with store.read() as session:
        found = jobs.get(session, job_id), trials.history(session, job_id), events.after(session, job_id, 0, 10_000)
    store.close()
    return found


def state_on_disk(directory: Path) -> str:
    """The only job's state."""
    return str(on_disk(directory, "select state from jobs"))


def wait_for_trials(directory: Path, at_least: int) -> None:
    """Waits until at least `at_least` trials of the only job are recorded."""
    wait_until(lambda: int(str(on_disk(directory, "select count(*) from trials"))) >= at_least)


def numbers(seen: list[Event]) -> list[int]:
    return [event.data["number"] for event in seen if event.kind == "trial"]


def check_kills_at_random_moments(
    directory: Path, seed: int, num_kills: int, num_trials: int = 150, build_s: float = 0.0
) -> None:
    """Checks that kills lose no trial and count none twice, and that the job succeeds."""
    job, chance = submit(directory, num_trials=num_trials), random.Random(seed)
    kept: list[Trial] = []
    for attempt in range(num_kills):
        with killed_afterwards(directory, trial_s=0.02, build_s=build_s):
            if attempt % 2:  # otherwise the kill would come during its start on a slow machine
                wait_for_trials(directory, len(kept) + (4 if build_s else 1))
            time.sleep(chance.uniform(0.05, 0.5))
        record, history, seen = read_back(directory, job.id)
        assert history[: len(kept)] == kept, "a recorded trial is missing, or was changed"
        assert [trial.number for trial in history] == list(range(len(history)))
        assert numbers(seen) == list(range(len(history))), "trials and their events disagree"
        assert record.num_trials == len(history)
        kept = history
    assert 0 < len(kept) < num_trials, "no kill happened during the search: shorten the pauses"
    with running_service(directory) as service:
        wait_until(lambda: service.job(job.id).state.is_final)
        ended = service.job(job.id)
        whole = service.trials(job.id, limit=500).items
    assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, num_trials)
    assert list(whole[: len(kept)]) == kept
    assert len({trial.candidate for trial in whole}) == num_trials, "a candidate was tried again"
    assert all(trial.num_known <= trial.number for trial in whole)
    if build_s:
        assert any(trial.num_known < trial.number - 1 for trial in kept), "several were in flight when it was killed"
