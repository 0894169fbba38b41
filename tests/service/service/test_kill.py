"""Nothing lost: the server is killed, and goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import finish, on_disk, wait_until
from tests.support.builders import spec
from tests.support.repository import ROOT
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.records import Event, InspectionKind, InspectionState, JobRecord
from tuner.store import Store, events, jobs, trials


@contextmanager
def killed_afterwards(
    directory: Path, trial_s: float, finals_s: float = 0.0, counters_s: float = 0.0, build_s: float = 0.0
) -> Iterator[None]:
    """A server that runs inside the block; SIGKILL at its end."""
    command = [sys.executable, "-m", "tests.service.service.victim", str(directory)]
    command += [str(seconds) for seconds in (trial_s, finals_s, counters_s, build_s)]
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


def read_back(directory: Path, job_id: str) -> tuple[JobRecord, list[Trial], list[Event]]:
    """What a dead server left; opening it takes the lock that the dead one held."""
    store = Store.open(directory)
    with store.read() as session:
        found = jobs.get(session, job_id), trials.history(session, job_id), events.after(session, job_id, 0, 10_000)
    store.close()
    return found


def state_on_disk(directory: Path) -> str:
    """The only job's state."""
    return str(on_disk(directory, "select state from jobs"))


def wait_for_trials(directory: Path, at_least: int) -> None:
    """Until so many trials of the only job are recorded."""
    wait_until(lambda: int(str(on_disk(directory, "select count(*) from trials"))) >= at_least)


def numbers(seen: list[Event]) -> list[int]:
    return [event.data["number"] for event in seen if event.kind == "trial"]


@pytest.mark.parametrize("build_s", [0.0, 0.1])
def test_kills_at_random_moments_lose_no_trial_count_none_twice_and_the_job_succeeds(
    tmp_path: Path, serve: Serve, build_s: float
) -> None:
    directory, chance = tmp_path / "data", random.Random(20)
    job = submit(directory, num_trials=150)
    kept: list[Trial] = []
    for attempt in range(6):
        with killed_afterwards(directory, trial_s=0.02, build_s=build_s):
            if attempt % 2:  # else the kill comes while it starts, where the machine is slow
                wait_for_trials(directory, len(kept) + 1)
            time.sleep(chance.uniform(0.05, 0.5))
        record, history, seen = read_back(directory, job.id)
        assert history[: len(kept)] == kept, "a recorded trial is gone, or was changed"
        assert [trial.number for trial in history] == list(range(len(history)))
        assert numbers(seen) == list(range(len(history))), "trials and their events disagree"
        assert record.num_trials == len(history)
        kept = history
    assert 0 < len(kept) < 150, "the kills did not hit the search: shorten the pauses"
    service = serve()
    ended = finish(service, job)
    assert (ended.state, ended.num_trials) == (JobState.SUCCEEDED, 150)
    whole = service.trials(job.id, limit=500).items
    assert list(whole[: len(kept)]) == kept
    assert len({trial.candidate for trial in whole}) == 150, "a candidate was tried again"
    assert all(trial.num_known <= trial.number for trial in whole)
    if build_s:
        assert any(trial.num_known < trial.number - 1 for trial in kept), "several were on their way when it was killed"


def test_a_kill_in_the_finals_costs_the_finals_alone(tmp_path: Path, serve: Serve) -> None:
    directory = tmp_path / "data"
    job = submit(directory, num_trials=6)
    with killed_afterwards(directory, trial_s=0.0, finals_s=600.0):
        wait_until(lambda: state_on_disk(directory) == JobState.FINALS)
    record, kept, _ = read_back(directory, job.id)
    assert (record.state, record.num_trials) == (JobState.FINALS, 6)
    service = serve()
    assert finish(service, job).state is JobState.SUCCEEDED
    assert service.trials(job.id).items == kept
    assert service.best(job.id).artifact_digest is not None
    states = [event.data["state"] for event in service.events(job.id) if event.kind == "state"]
    assert states == ["queued", "searching", "finals", "succeeded"]


def test_an_inspection_that_a_kill_cut_off_is_taken_again_after_those_that_were_not(
    tmp_path: Path, serve: Serve
) -> None:
    directory = tmp_path / "data"
    job = submit(directory, num_trials=3)
    begun = "select coalesce(sum(num_attempts), 0) from inspections where kind = 'counters'"
    with killed_afterwards(directory, trial_s=0.0, counters_s=600.0):
        wait_until(lambda: state_on_disk(directory) == JobState.SUCCEEDED)
        wait_until(lambda: on_disk(directory, begun) == 1)
    left = "select count(*) from inspections where state = 'pending'"
    num_left = on_disk(directory, left)
    with killed_afterwards(directory, trial_s=0.0, counters_s=600.0):
        wait_until(lambda: on_disk(directory, begun) == 2)
    assert on_disk(directory, left) == num_left, "nothing may be lost"
    service = serve()
    wait_until(lambda: on_disk(directory, left) == 0)
    taken = service.inspections(job.id, range(3))
    assert {inspection.state for inspection in taken} == {InspectionState.DONE}
    assert sorted(inspection.num_attempts for inspection in taken if inspection.kind is InspectionKind.COUNTERS) == [
        1,
        2,
        2,
    ]


def test_an_inspection_that_outlives_no_process_ends_with_that_for_its_reason(tmp_path: Path, serve: Serve) -> None:
    directory = tmp_path / "data"
    job = submit(directory, num_trials=1)
    for attempt in (1, 2):
        with killed_afterwards(directory, trial_s=0.0, counters_s=600.0):
            begun = "select coalesce(max(num_attempts), 0) from inspections"
            wait_until(lambda: on_disk(directory, begun) == attempt)  # noqa: B023
    service = serve()
    wait_until(lambda: on_disk(directory, "select count(*) from inspections where state = 'pending'") == 0)
    inspection = service.inspection(job.id, 0, InspectionKind.COUNTERS)
    assert (inspection.state, inspection.reason) == (
        InspectionState.FAILED,
        "the service ended 2 times while it was taken",
    )
    assert service.job(job.id).state is JobState.SUCCEEDED
