"""The raw samples of a trial over HTTP."""

from __future__ import annotations

import pytest

from tests.service.api.conftest import Api
from tests.service.service.test_finals import LIBRARY
from tests.support.builders import measured, spec, trial
from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.trial.job import JobState
from tuner.core.trial.samples import DropReason, Round
from tuner.store.jobs import jobs
from tuner.store.trials import trials

PROCEDURE = Procedure(l2=CacheState.COLD, regime=Regime.BURST, launch=LaunchStyle.PDL, chain_length=8)
ROUNDS = (
    Round(time_us=10.0, library_us=20.0, clock_mhz=1980, library_clock_mhz=1965),
    Round(time_us=14.0, library_us=20.5, clock_mhz=1400, library_clock_mhz=1965, dropped=DropReason.SLOW_CLOCK),
)


@pytest.fixture
def recorded(idle_api: Api) -> str:
    """The id of a job with a trial whose samples are known."""
    outcome = measured(10.0, rounds=ROUNDS, procedure=PROCEDURE, truncated=True, remark="it was noisy")
    with idle_api.service._store.write() as session:
        job = jobs.insert(session, spec(), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        trials.record(session, job.id, LIBRARY, 1.0)
        trials.record(session, job.id, trial(1, outcome), 1.0)
        jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
    return job.id


def test_every_round_is_reported_with_its_clocks_and_why_it_does_not_count(idle_api: Api, recorded: str) -> None:
    found = idle_api.get(f"/jobs/{recorded}/trials/1/samples")
    assert found["procedure"] == {"l2": "cold", "regime": "burst", "launch": "pdl", "chain_length": 8}
    assert (found["job_id"], found["number"], found["simulated"]) == (recorded, 1, True)
    assert (found["truncated"], found["remark"]) == (True, "it was noisy")
    first, second = found["rounds"]
    assert first == {
        "time_us": 10.0,
        "library_us": 20.0,
        "clock_mhz": 1980,
        "library_clock_mhz": 1965,
        "kept": True,
        "dropped": None,
    }
    assert (second["kept"], second["dropped"]) == (False, "slow_clock")


def test_a_trial_names_its_procedure_and_what_weakens_it(idle_api: Api, recorded: str) -> None:
    outcome = idle_api.get(f"/jobs/{recorded}/trials")["items"][1]["outcome"]
    assert (outcome["truncated"], outcome["remark"]) == (True, "it was noisy")
    assert outcome["procedure"]["launch"] == "pdl"
    assert outcome["samples_us"] == [10.0]
    page = idle_api.http.get(f"/ui/jobs/{recorded}").text
    assert "(truncated)" in page
    assert "(it was noisy)" in page


def test_samples_that_were_collected_are_gone_but_the_trial_stays(idle_api: Api, recorded: str) -> None:
    idle_api.service.collect_garbage(0)
    response = idle_api.http.get(f"/jobs/{recorded}/trials/1/samples")
    assert response.status_code == 404
    assert "tuner gc removed them" in response.json()["detail"]
    assert idle_api.get(f"/jobs/{recorded}/trials")["items"][1]["outcome"]["time_us"] == 10.0


def test_a_trial_that_was_not_measured_or_is_not_there_has_none(api: Api, idle_api: Api) -> None:
    missing = api.http.get(f"/jobs/{api.job_id}/trials/999/samples")
    assert missing.status_code == 404
    assert "its trials are 0 to" in missing.json()["detail"]
    assert api.http.get(f"/jobs/{api.job_id}/trials/x/samples").status_code == 422
