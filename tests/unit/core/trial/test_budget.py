"""When a search ends, and how much of its budget is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import spec
from tuner.core.trial.job import Budget, JobSpec, JobState
from tuner.core.trial.records import JobRecord
from tuner.errors import InvalidInput

BUDGET = Budget(trials=60, seconds=100.0)


@pytest.mark.parametrize(
    ("num_trials", "search_s", "expected"), [(20, 10.0, 20.0), (60, 30.0, 0.0), (10, 90.0, 10.0), (10, 101.0, 0.0)]
)
def test_the_time_left_is_by_trials_or_by_seconds_whichever_ends_first(
    num_trials: int, search_s: float, expected: float
) -> None:
    assert BUDGET.left_s(num_trials, search_s) == expected


def record(state: JobState, num_measured: int, search_s: float, card_s: float | None) -> JobRecord:
    return JobRecord(
        id="job-1", spec=replace(spec(), budget=BUDGET), state=state, reason="", created_at=0.0, started_at=None,
        finished_at=None, num_measured=num_measured, num_rejected=0, num_failed=0, best_us=None, library_us=None,
        search_s=search_s, card_s=card_s,
    )  # fmt: skip


def test_only_a_search_that_has_begun_has_an_end_in_sight_and_a_share_of_the_card() -> None:
    assert record(JobState.SEARCHING, 0, 0.0, 0.0).eta_s(0.0) is None
    assert record(JobState.SEARCHING, 0, 0.0, 0.0).card_share is None
    assert record(JobState.SEARCHING, 20, 10.0, 7.5).eta_s(0.0) == 20.0
    assert record(JobState.SEARCHING, 20, 10.0, 7.5).card_share == 0.75
    assert record(JobState.FINALS, 60, 30.0, 31.0).eta_s(0.0) is None
    assert record(JobState.FINALS, 60, 30.0, 31.0).card_share == 1.0
    assert record(JobState.SUCCEEDED, 60, 30.0, None).card_share is None


def test_no_search_is_said_to_last_beyond_its_deadline() -> None:
    job = replace(record(JobState.SEARCHING, 20, 10.0, 7.5), deadline_at=1015.0)
    assert [job.eta_s(now) for now in (900.0, 1000.0, 1020.0)] == [20.0, 15.0, 0.0]


def test_patience_is_a_number_of_trials_or_none_and_is_left_out_of_old_names() -> None:
    with pytest.raises(InvalidInput, match=r"budget\.patience"):
        Budget(patience=0)
    patient = replace(spec(), budget=replace(BUDGET, patience=5))
    assert JobSpec.from_json(patient.to_json()) == patient
    assert "patience" not in spec().to_json()["budget"]
    assert JobSpec.from_json(spec().to_json()) == spec()
    assert patient.problem_digest == spec().problem_digest
