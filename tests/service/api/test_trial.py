"""Routes and pages of one trial: its run as columns, its source, its plan, and the sentences of its page."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.service.api.conftest import Api
from tests.support.waterfalls import counted
from tuner.core.plan.table.words import Plan
from tuner.core.trial.records import InspectionKind
from tuner.store.trials import inspections


def number_of(api: Api, plan_kind: str, outcome: str = "measured") -> int:
    """The number of a trial of the job."""
    items = api.get(f"/jobs/{api.job_id}/trials?plan_kind={plan_kind}&outcome={outcome}&sort=time")["items"]
    return int(items[0]["number"])


def test_a_forecast_is_ordered_and_its_waits_name_tasks_that_stored_before(api: Api) -> None:
    gantt = api.get(f"/jobs/{api.job_id}/trials/{number_of(api, 'fused')}/gantt?of=forecast")
    tasks, waits = gantt["tasks"], gantt["waits"]
    times = np.array([tasks[name] for name in ("taken", "ready", "loaded", "computed", "stored")])
    assert (np.diff(times, axis=0) >= 0).all()
    assert gantt["makespan_ns"] == times.max() > 0
    assert times.min() == 0
    assert max(tasks["sm"]) < gantt["num_sms"]
    waited = [task for task, (a, b) in enumerate(zip(waits["first_wait"], waits["last_wait"], strict=True)) if a < b]
    assert waited
    for task in waited:
        for wait in range(waits["first_wait"][task], waits["last_wait"][task]):
            low, high = waits["first_signal"][wait], waits["last_signal"][wait]
            posts = [other for other, signal in enumerate(waits["posts"]) if low <= signal < high]
            assert posts
            assert {tasks["op"][other] for other in posts} == {0}
    for shares in gantt["shares"].values():
        assert sum(shares.values()) == pytest.approx(1.0)


def test_a_trace_that_was_taken_has_the_tasks_of_the_forecast(api: Api) -> None:
    finals = [row for row in api.get(f"/jobs/{api.job_id}/best")["finals"] if row["candidate"]["plan_kind"] == "fused"]
    final = min((row for row in finals if row["time_us"]), key=lambda row: row["time_us"])
    base = f"/jobs/{api.job_id}/trials/{final['trial_number']}/gantt"
    measured, forecast = api.get(f"{base}?of=measured"), api.get(f"{base}?of=forecast")
    assert measured["simulated"]
    assert measured["of"] == "measured"
    for name in ("launch", "op", "tile_m", "tile_n"):
        assert measured["tasks"][name] == forecast["tasks"][name]
    assert measured["waits"] == forecast["waits"]
    # The simulated card is slower than the forecast by a factor.
    assert measured["makespan_ns"] != forecast["makespan_ns"]


def test_source_and_plan_are_what_the_kernel_is_made_of(api: Api) -> None:
    base = f"/jobs/{api.job_id}/trials/{number_of(api, 'fused')}"
    source = api.http.get(f"{base}/source")
    assert source.headers["content-type"].startswith("text/plain")
    assert "__global__" in source.text
    plan = Plan.from_words(api.http.get(f"{base}/plan?launch=0").content)
    assert plan.num_tasks == len(api.get(f"{base}/gantt")["tasks"]["op"])
    assert api.http.get(f"{base}/plan?launch=1").status_code == 404
    library = f"/jobs/{api.job_id}/trials/{number_of(api, 'library')}"
    assert api.http.get(f"{library}/source").status_code == 404
    assert api.http.get(f"{library}/plan").status_code == 404
    assert "cannot be traced" in api.http.get(f"{library}/gantt").json()["detail"]


# In CI, test_outcome_pages.py has every kind of outcome.
@pytest.mark.soak
def test_the_page_of_every_trial_is_there_whatever_became_of_it(api: Api) -> None:
    for trial in api.get(f"/jobs/{api.job_id}/trials?limit=100")["items"]:
        path = f"/ui/jobs/{api.job_id}/trials/{trial['number']}"
        page = api.http.get(path, headers={"accept": "text/html"})
        assert page.status_code == 200, page.text
        assert " style=" not in page.text
        twin = api.get(f"{path}.json")
        assert twin["trial"] == trial
        assert bool(twin["samples"]) == (trial["outcome"]["kind"] == "measured")
        for one in twin["downloads"]:
            assert api.http.get(one["href"]).status_code == 200, one
    assert api.http.get(f"/ui/jobs/{api.job_id}/trials/9999", headers={"accept": "text/html"}).status_code == 404


def test_what_differs_from_the_best_is_named_axis_by_axis(api: Api) -> None:
    best = api.get(f"/ui/jobs/{api.job_id}/trials/{number_of(api, 'fused')}.json")["best"]
    assert api.get(f"/ui/jobs/{api.job_id}/trials/{best['number']}.json")["differences"] == []
    other = number_of(api, "two_launches")
    rows = api.get(f"/ui/jobs/{api.job_id}/trials/{other}.json")["differences"]
    assert other != best["number"]
    assert {"axis": "plan kind", "here": "two launches", "best": best["plan_kind"].replace("_", " ")} in rows
    assert all(row["here"] != row["best"] for row in rows)


def test_the_timeline_in_tables_adds_up(api: Api) -> None:
    path = f"/ui/jobs/{api.job_id}/trials/{number_of(api, 'fused')}/timeline"
    page = api.get(f"{path}.json?of=forecast")
    assert sum(op["num_tasks"] for op in page["ops"]) == sum(sm["num_tasks"] for sm in page["sms"])
    waits = [one["waited_us"] for one in page["waits"]]
    assert waits == sorted(waits, reverse=True)
    html = api.http.get(f"{path}?of=forecast", headers={"accept": "text/html"}).text
    assert html.count("<tr>") >= len(page["sms"])


def test_the_source_page_has_colours_by_classes_alone(api: Api) -> None:
    path = f"/ui/jobs/{api.job_id}/trials/{number_of(api, 'fused')}/source"
    html = api.http.get(path, headers={"accept": "text/html"}).text
    assert '<span class="kt">int</span>' in html or '<span class="k">struct</span>' in html
    assert " style=" not in html
    assert "<script>" not in html


def test_the_page_draws_where_the_time_goes_or_says_why_it_cannot(api: Api) -> None:
    rows = api.get(f"/jobs/{api.job_id}/best")["finals"]
    fused = [row for row in rows if row["candidate"]["plan_kind"] == "fused"]
    number = min(fused, key=lambda row: float(row["time_us"]))["trial_number"]  # each kind's best is inspected
    path = f"/ui/jobs/{api.job_id}/trials/{number}"
    simulated = api.get(f"{path}.json")["waterfall"]
    assert simulated["bars"] == []
    assert simulated["sentence"].startswith("Not available: not counted: sm__cycles_elapsed")
    time_us = api.get(f"/jobs/{api.job_id}/trials/{number}")["outcome"]["time_us"]
    names = tuple(one.name for one in counted(time_us).counters)
    with api.service._store.write() as session:
        kind, later = InspectionKind.COUNTERS, time.time() + 60
        asked, _ = inspections.ask(session, api.job_id, number, kind, names, is_urgent=False, now=later)
        inspections.finish(session, asked.seq, counted(time_us), (), later)
    drawn = api.get(f"{path}.json")["waterfall"]
    assert drawn["holds"]
    assert sum(bar["us"] for bar in drawn["bars"]) == pytest.approx(time_us) == drawn["sum_us"]
    assert [bar["name"] for bar in drawn["bars"] if bar["note"]] == ["unneeded_rows", "launch"]
    html = api.http.get(path, headers={"accept": "text/html"}).text
    assert html.count('<td class="drawn">') == 6
    assert "launches, and gaps between runs" in html
