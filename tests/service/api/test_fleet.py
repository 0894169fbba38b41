"""The fleet's last day: what was recorded in each minute, what the driver reported, and which jobs had failed
trials."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.builders import failed, measured, spec, trial
from tests.support.serving import body, listening, running_service, wait_until_final
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind
from tuner.dispatch.machine import CardReading
from tuner.service.metrics import _readings
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials

CARD = CardReading(
    uuid="GPU-0", name="NVIDIA H200", temperature_c=61, sm_clock_mhz=1980, memory_clock_mhz=3201, power_w=412.5,
    power_limit_w=700.0, utilization=0.9, memory_used_bytes=2**30, memory_bytes=141 * 2**30,
)  # fmt: skip
KINDS = [FailureKind.HANG, FailureKind.WRONG_NUMBERS, FailureKind.HANG]


@pytest.mark.slow
def test_the_last_day_has_what_was_recorded_and_what_the_driver_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_service(tmp_path / "data") as service, listening(service) as url:
        assert httpx.get(f"{url}/ui/fleet.json").json()["history"] == []
        job = httpx.post(f"{url}/jobs", json=body()).json()["id"]
        wait_until_final(service, job)
        monkeypatch.setattr(service.fleet, "cards", lambda: [CARD])
        service.fleet_history.take()
        service.fleet_history.take()
        first, second = service.fleet_history.samples()
        assert sum(first.trials.values()) == service.job(job).num_trials
        assert sum(second.trials.values()) == 0
        shown = {one["name"]: one for one in httpx.get(f"{url}/ui/fleet.json").json()["history"]}
        assert shown["Trials"]["points"][0][1] > 0
        assert shown["Trials"]["points"][-1][1] == 0
        assert shown["Card 0 (NVIDIA H200): temperature"]["points"][-1][1] == 61
        assert shown["Card 0 (NVIDIA H200): SM clock"]["unit"] == "MHz"
        page = httpx.get(f"{url}/ui/fleet", headers={"Accept": "text/html"}).text
        assert page.count("<polyline") == len(shown) == 5


def test_failed_trials_are_listed_by_job_and_kind(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    with store.write() as session:
        job = jobs.insert(session, spec(trials=100), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number, outcome in enumerate([measured(20.0), *map(failed, KINDS)]):
            trials.record(session, job.id, trial(number, outcome), 0.1)
        jobs.insert(session, spec(m=32), 1.0)
    store.close()
    with running_service(tmp_path / "data", target=None) as service, listening(service) as url:
        (shown,) = httpx.get(f"{url}/ui/fleet.json").json()["failures"]
        assert (shown["id"], shown["num_failed"], shown["num_trials"]) == (job.id, 3, 4)
        assert shown["kinds"] == {"hang": 2, "wrong_numbers": 1}
        page = httpx.get(f"{url}/ui/fleet", headers={"Accept": "text/html"}).text
        assert f'href="/ui/jobs/{job.id}?outcome=failed&amp;reason=hang">2 hang</a>' in page


def test_prometheus_gets_what_the_driver_says_and_nothing_where_it_says_nothing() -> None:
    blank = CardReading(**dict.fromkeys(CARD.__dataclass_fields__) | {"uuid": "GPU-1", "name": "x"})
    found = {
        (family.name, sample.labels["card"]): sample.value
        for family in _readings([CARD, blank])
        for sample in family.samples
    }
    assert found == {
        ("tuner_card_temperature_celsius", "0"): 61,
        ("tuner_card_sm_clock_mhz", "0"): 1980,
        ("tuner_card_power_watts", "0"): 412.5,
    }
