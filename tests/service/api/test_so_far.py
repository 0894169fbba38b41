"""The page of an unfinished job shows the fastest kernel so far."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.builders import measured, spec, trial
from tests.support.serving import listening, running_service
from tuner.core.trial.job import JobState
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials


@pytest.mark.slow
def test_a_job_without_a_verdict_says_how_far_it_is(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    with store.write() as session:
        job = jobs.insert(session, spec(trials=100), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number, outcome in enumerate([measured(30.0), measured(20.0)]):
            trials.record(session, job.id, trial(number, outcome), 0.1)
        jobs.set_state(session, job.id, JobState.CANCELLED, 3.0)
    store.close()
    with running_service(tmp_path / "data", target=None) as service, listening(service) as url:
        page = httpx.get(f"{url}/ui/jobs/{job.id}", headers={"Accept": "text/html"}).text
        headline = page.partition('id="so-far"')[2].partition("</section>")[0]
        assert "So far: " in headline
        assert "trial 1</a>" in headline
        assert "20.0 µs" in headline
