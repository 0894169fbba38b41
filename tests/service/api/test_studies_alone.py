"""A schedule of a study that was not timed in the shared rounds is marked wherever the study is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.api.conftest import serving
from tests.support.serving import wait_until_final
from tuner.client.delivery.output import plain_console
from tuner.client.terminal.study import study_table
from tuner.core.schedule.one_line import read_line

PAIR = {"kind": "ffn", "m": 256, "d_in": 256, "d_hidden": 256, "d_out": 256}
LINE = "mma 64x64x64+64x64x64 s3 w4 | row+row producer_first row-sync static 1/SM"


# In CI, test_finals.py says which schedules share rounds, and tests/unit/wire/test_study.py marks the others.
@pytest.mark.soak
def test_schedules_beyond_the_most_that_share_rounds_have_their_trials_time_and_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.finals.finals.MAX_SHARED", 3)
    with serving(tmp_path / "data") as api:
        given = {"plan_kind": "fused", "schedule": read_line(LINE).to_json()}
        asked = {"pair": PAIR, "schedules": [given], "sweep": "rasters"}
        answer = api.http.post("/jobs", json=asked)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["id"]
        assert wait_until_final(api.service, job_id) == "succeeded"
        found = api.get(f"/jobs/{job_id}/study")
        page = api.http.get(f"/ui/studies/{job_id}").text
    ours = [one for one in found["members"] if one["candidate"]["schedule"]]
    alone = [one for one in ours if one["reason"]]
    assert alone
    assert len(ours) - len(alone) >= 3
    for one in alone:
        assert one["time_us"] > 0
        assert one["interval_us"] is None
        assert one["reason"].startswith("not in the shared rounds")
    assert max(ours, key=lambda one: one["speedup"])["interval_us"] is not None
    console = plain_console(width=150)
    with console.capture() as captured:
        console.print(study_table(found))
    shown = captured.get()
    assert "(1) not in the shared rounds" in shown
    assert shown.count("µs (1)") == page.count("µs (1)") == len(alone)
    assert page.count("not in the shared rounds") == 1
