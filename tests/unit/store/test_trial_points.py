"""Points of a chart: all trials of a small job; for a large one, evenly spaced ones and each new best."""

from __future__ import annotations

import pytest

from tests.support.builders import failed, measured, spec, trial
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import points as trial_points
from tuner.store.trials import trials
from tuner.store.trials.points import measured_candidates, points


@pytest.fixture
def job_id(store: Store) -> str:
    """Thirty trials: the library, then ever slower ones, except that the 7th and the 22nd are faster than all
    before."""
    with store.write() as session:
        job = jobs.insert(session, spec(trials=100), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number in range(30):
            fast = {7: 20.0, 22: 10.0}
            outcome = failed() if number == 5 else measured(fast.get(number, 50.0 + number), stage_s={"build": 0.5})
            kind = PlanKind.LIBRARY if number == 0 else PlanKind.FUSED
            trials.record(session, job.id, trial(number, outcome, kind), 0.1)
    return job.id


def test_every_trial_of_a_small_job_is_a_point(store: Store, job_id: str) -> None:
    with store.read() as session:
        found = points(session, job_id)
    assert [one.number for one in found.points] == list(range(30)) == list(range(found.num_trials))
    assert found.points[5].time_us is None
    assert found.points[5].failure_kind == "hang"
    assert found.points[22].time_us == 10.0
    assert found.stage_s == {"build": pytest.approx(14.5)}


def test_of_many_trials_some_are_points_and_none_that_was_the_best_is_lost(
    store: Store, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_points, "MAX_POINTS", 6)
    with store.read() as session:
        found = points(session, job_id)
    assert [one.number for one in found.points] == [0, 1, 5, 7, 10, 15, 20, 22, 25]
    assert found.num_trials == 30
    assert found.stage_s == {"build": pytest.approx(14.5, rel=0.2)}, "of all trials, in proportion"


def test_candidates_are_measured_ones_of_ours_evenly_chosen(store: Store, job_id: str) -> None:
    with store.read() as session:
        every, some = measured_candidates(session, job_id, 100), measured_candidates(session, job_id, 7)
    assert [number for number, _, _ in every] == [number for number in range(1, 30) if number != 5]
    assert [number for number, _, _ in some] == [1, 6, 10, 14, 18, 22, 26]
    assert every[-1][2] == pytest.approx(100 / 79)
