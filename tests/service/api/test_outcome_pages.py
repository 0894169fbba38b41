"""The page of a job that has a trial of every outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.service.api.conftest import Api, serving
from tests.support.builders import failed, measured, rejected, spec, trial
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind, Metric, Outcome
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.trials import trials

OUTCOMES: tuple[Outcome, ...] = (
    measured(20.0),
    measured(30.0, truncated=True, remark="its clocks fell"),
    measured(25.0, metrics=(Metric(tag="foreign_processes", unit="", value=2.0),)),
    rejected(),
    *(failed(kind) for kind in FailureKind),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with one job that has a trial of every outcome."""
    path = Path(tmp_path_factory.mktemp("outcomes") / "data")
    store = Store.open(path)
    with store.write() as session:
        job = jobs.insert(session, spec(trials=100), 1.0)
        jobs.set_state(session, job.id, JobState.SEARCHING, 2.0)
        for number, outcome in enumerate(OUTCOMES):
            trials.record(session, job.id, trial(number, outcome), 0.1)
    store.close()
    with serving(path, target=None) as api:
        yield replace(api, job_id=job.id)


@pytest.mark.slow
def test_every_kind_of_outcome_is_rendered_in_its_row(page: Api) -> None:
    html = page.http.get(f"/ui/jobs/{page.job_id}", headers={"Accept": "text/html"})
    assert html.status_code == 200, html.text
    rows = html.text.split('<div id="live-trials">')[1].split("<tr class=")[1:]
    assert len(rows) == len(OUTCOMES)
    assert "(truncated)" in rows[1]
    assert "its clocks fell" in rows[1]
    assert "shared card" in rows[2]
    assert rows[3].startswith('"rejected"')
    assert "too large" in rows[3]
    for kind, row in zip(FailureKind, rows[4:], strict=True):
        assert f"failed: {str(kind).replace('_', ' ')}" in row


@pytest.mark.parametrize("outcome", ["measured", "rejected", "failed"])
def test_the_rows_of_one_outcome_alone_are_rendered(page: Api, outcome: str) -> None:
    address = f"/ui/jobs/{page.job_id}"
    html = page.http.get(f"{address}?outcome={outcome}", headers={"Accept": "text/html"})
    assert html.status_code == 200
    listed = page.get(f"{address}.json?outcome={outcome}")["trials"]["items"]
    assert html.text.count(f'<tr class="{outcome}">') == len(listed) > 0
