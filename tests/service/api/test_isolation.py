"""What a client sees of a GPU in quarantine, and of a shared GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.api.conftest import serving
from tests.service.service.helpers import SharedCard, SickCard
from tests.support.serving import body, wait_until_final
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


# In CI, tests/unit/service/test_server.py asks every view, and test_quarantine.py has a job that waits.
@pytest.mark.soak
def test_every_view_says_why_nothing_is_measured_and_forgets_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.runner.probing.PROBE_PAUSES_S", (0.05,))
    card = SickCard(num_trials=2)
    with serving(tmp_path / "data", evaluators=[card]) as api:
        job = api.http.post("/jobs", json=body()).json()
        wait_until(lambda: card.num_probes >= 2)
        [target] = api.get("/targets")
        assert "345 of 1980 MHz" in target["quarantine"]["reason"]
        ready = api.http.get("/readyz")
        assert ready.status_code == 503
        assert "in quarantine" in ready.json()["detail"]
        assert api.http.get("/livez").status_code == 200
        assert "in quarantine" in api.get(f"/jobs/{job['id']}")["reason"]
        for path in ("/", f"/ui/jobs/{job['id']}"):
            assert "345 of 1980 MHz" in api.http.get(path, headers={"accept": "text/html"}).text
        card.is_fit.set()
        assert wait_until_final(api.service, job["id"]) == "succeeded"
        assert api.get("/targets")[0]["quarantine"] is None
        assert api.get("/readyz")["quarantined"] == {}


def test_a_trial_that_was_timed_beside_a_neighbour_is_marked_and_no_other(tmp_path: Path) -> None:
    with serving(tmp_path / "data", evaluators=[SharedCard()]) as api:
        job = api.http.post("/jobs", json=body()).json()
        assert wait_until_final(api.service, job["id"]) == "succeeded"
        for kind, is_marked in (("library", True), ("fused", False)):
            page = f"/ui/jobs/{job['id']}?outcome=measured&plan_kind={kind}"
            assert ("shared card" in api.http.get(page, headers={"accept": "text/html"}).text) is is_marked
