"""The server is killed during the finals or an inspection, and continues without loss.

tests/soak/kills.py kills a server at random moments of a search.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.service.conftest import Serve
from tests.service.service.helpers import finish, on_disk
from tests.service.service.killing import (
    check_kills_at_random_moments,
    killed_afterwards,
    read_back,
    state_on_disk,
    submit,
)
from tests.support.waiting import wait_until
from tuner.core.trial.job import JobState
from tuner.core.trial.records import InspectionKind, InspectionState


@pytest.mark.slow
def test_kills_with_several_candidates_on_their_way_lose_no_trial_and_count_none_twice(tmp_path: Path) -> None:
    check_kills_at_random_moments(tmp_path / "data", seed=20, num_kills=2, num_trials=20, build_s=0.4)


@pytest.mark.slow
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


# In CI, the test above kills a server in the finals.
@pytest.mark.soak
def test_a_kill_behind_the_finals_while_the_kernel_is_packed_leaves_one_result_and_one_kernel(
    tmp_path: Path, serve: Serve
) -> None:
    directory = tmp_path / "data"
    job = submit(directory, num_trials=6)
    for _ in range(2):
        with killed_afterwards(directory, trial_s=0.0, artifact_s=600.0) as server:
            wait_until(lambda: "packs" in server.printed)
    record, kept, _ = read_back(directory, job.id)
    assert (record.state, record.num_trials) == (JobState.FINALS, 6)
    service = serve()
    assert finish(service, job).state is JobState.SUCCEEDED
    assert service.trials(job.id).items == kept
    assert on_disk(directory, "select count(*) from bests") == 1
    digest = service.best(job.id).artifact_digest
    assert [path.name for path in (directory / "artifacts").rglob("*") if path.is_file()] == [digest]


# In CI, test_inspections.py says which comes first, and ends a service in an inspection.
@pytest.mark.soak
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


# In CI, test_inspections.py has one that two processes did not outlive.
@pytest.mark.soak
def test_an_inspection_that_outlives_no_process_ends_with_that_for_its_reason(tmp_path: Path, serve: Serve) -> None:
    directory = tmp_path / "data"
    job = submit(directory, num_trials=1)
    for attempt in (1, 2):
        with killed_afterwards(directory, trial_s=0.0, counters_s=600.0):
            begun = "select coalesce(max(num_attempts), 0) from inspections where kind = 'counters'"
            wait_until(lambda: on_disk(directory, begun) == attempt)  # noqa: B023
    service = serve()
    wait_until(lambda: on_disk(directory, "select count(*) from inspections where state = 'pending'") == 0)
    inspection = service.inspection(job.id, 0, InspectionKind.COUNTERS)
    assert (inspection.state, inspection.reason) == (
        InspectionState.FAILED,
        "the service ended 2 times while it was being collected",
    )
    assert service.job(job.id).state is JobState.SUCCEEDED
