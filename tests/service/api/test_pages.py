"""The dashboard without a browser: JSON forms, marks, errors."""

from __future__ import annotations

import csv
import io
import re

import pytest
from markupsafe import escape

from tests.service.api.conftest import Api
from tuner.api.http.rendering import arrows
from tuner.core.insight.forecast_quality import ForecastQuality
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.units import microseconds, ratio
from tuner.store.jobs import jobs

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(
    params=["/", "/ui/jobs/{job_id}", "/ui/jobs/{job_id}?outcome=measured&plan_kind=fused&reason=&sort=time"]
)
def path(request: pytest.FixtureRequest, api: Api) -> str:
    return str(request.param).format(job_id=api.job_id).replace("&reason=", "")


def test_a_page_loads_nothing_from_elsewhere(api: Api, path: str) -> None:
    response = api.http.get(path, headers=HTML)
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert ("default-src 'none'" in policy, "script-src 'self'" in policy, "unsafe" in policy) == (True, True, False)
    linked = re.findall(r'(?:src|href|action)="([^"]*)"', response.text)
    assert linked
    assert all(link.startswith(("/", "?", "#", str(api.http.base_url).rstrip("/"))) for link in linked)
    assert "<script>" not in response.text
    assert " style=" not in response.text


def test_a_page_has_its_json_form_at_its_path_and_by_its_accept_header(api: Api, path: str) -> None:
    address, _, query = path.partition("?")
    by_path = api.get(f"{address}.json?{query}")
    by_header = api.get(path, headers={"Accept": "application/json"})
    assert by_path == by_header
    as_json = re.search(r'id="as-json" href="([^"]*)"', api.http.get(path, headers=HTML).text)
    assert as_json is not None
    assert api.get(as_json[1].replace("&amp;", "&")) == by_path


def test_a_page_shows_what_its_json_form_says(api: Api) -> None:
    as_json = api.get(f"/ui/jobs/{api.job_id}.json")
    html = api.http.get(f"/ui/jobs/{api.job_id}", headers=HTML).text
    assert as_json["job"]["workload"].replace(">", "&gt;") in html
    best = as_json["best"]
    gain = best["finals"][best["winner_row"]]["speedup"]
    assert f"Verdict: {PlanKind(best['winner']).at_speed(gain)}" in html
    for row in as_json["best"]["finals"]:
        assert f"{row['time_us']:,.1f} µs" in html
    for sentence in as_json["best"]["finals"][as_json["best"]["winner_row"]]["candidate"]["words"]:
        assert escape(sentence) in html
    for outcome, count in as_json["outcome_counts"].items():
        assert outcome.replace("_", " ") in html
        assert f">{count}<" in html
    assert as_json["best"]["sentence"] in html
    assert len(re.findall(r'<tr class="(?:measured|rejected|failed)">', html)) == len(as_json["trials"]["items"])
    assert sum(as_json["outcome_counts"].values()) == as_json["job"]["num_trials"]


def test_the_plot_without_javascript_has_the_baselines_and_the_curve_and_names_the_bound(api: Api) -> None:
    html = api.http.get(f"/ui/jobs/{api.job_id}", headers=HTML).text
    for label in ("library", "two launches"):
        assert f">{label}</text>" in html
    assert "<polyline" in html
    assert "The data sheet&#39;s bound is " in html or "The data sheet's bound is " in html


def test_figures_of_the_twin_are_marked_once_a_page_or_in_a_column(api: Api, path: str) -> None:
    html = api.http.get(path, headers=HTML).text
    before, figure, _ = html.partition(" µs")
    assert figure
    assert ">simulated</span>" in before
    if "/ui/jobs/" in path:
        assert html.count(">simulated</span>") == 1
    else:
        rows = re.findall(r"<tr[^>]*>(?:(?!</tr>).)*µs.*?</tr>", html, re.DOTALL)
        assert rows
        assert all(row.count(">simulated</span>") == 1 for row in rows)


def test_an_exported_row_says_by_itself_that_it_is_simulated(api: Api) -> None:
    text = api.http.get(f"/ui/jobs/{api.job_id}/trials.csv").text
    rows = list(csv.DictReader(io.StringIO(text)))
    trials = api.get(f"/jobs/{api.job_id}/trials?limit=500")["items"]
    assert [int(row["number"]) for row in rows] == [trial["number"] for trial in trials]
    assert {row["simulated"] for row in rows} == {"True"}
    measured = {
        trial["number"]: trial["outcome"]["time_us"] for trial in trials if trial["outcome"]["kind"] == "measured"
    }
    assert {int(row["number"]): float(row["time_us"]) for row in rows if row["time_us"]} == measured
    fused = list(csv.DictReader(io.StringIO(api.http.get(f"/ui/jobs/{api.job_id}/trials.csv?plan_kind=fused").text)))
    assert {row["plan_kind"] for row in fused} == {"fused"}


def test_the_points_of_the_charts_are_the_trials(api: Api) -> None:
    points = api.get(f"/ui/jobs/{api.job_id}/points.json")
    trials = api.get(f"/jobs/{api.job_id}/trials?limit=500")["items"]
    assert points["number"] == [trial["number"] for trial in trials]
    for trial, time_us, kind in zip(trials, points["time_us"], points["plan_kind"], strict=True):
        assert points["plan_kinds"][kind] == trial["candidate"]["plan_kind"]
        assert time_us == (round(trial["outcome"]["time_us"], 3) if trial["outcome"]["kind"] == "measured" else None)
    assert points["at_s"] == sorted(points["at_s"])


def test_the_axes_that_decided_are_of_trials_of_ours(api: Api) -> None:
    axes = api.get(f"/ui/jobs/{api.job_id}/axes.json")
    kinds = {
        trial["number"]: trial["candidate"]["plan_kind"] for trial in api.get(f"/jobs/{api.job_id}/trials")["items"]
    }
    assert axes["num_trials"] == len(axes["number"]) == len(axes["speedup"])
    assert "library" not in {kinds[number] for number in axes["number"]}
    assert axes["values"]["plan_kind"] == [kinds[number] for number in axes["number"]]
    assert all(len(set(map(str, column))) > 1 for column in axes["values"].values())
    if axes["shares"]:
        assert sum(axes["shares"].values()) == pytest.approx(1, abs=0.01)


def test_columns_are_chosen_and_an_unknown_one_is_refused(api: Api) -> None:
    page = f"/ui/jobs/{api.job_id}"
    html = api.http.get(f"{page}?column=number&column=registers", headers=HTML).text
    table = html.split('<div id="live-trials">')[1]
    assert re.findall(r"<th\b[^>]*>(?:<a[^>]*>)?([^<]*)", table) == ["Trial", "Registers"]
    wrong = api.http.get(f"{page}?column=colour", headers=HTML)
    assert wrong.status_code == 422
    assert "&#39;colour&#39; is not a column" in wrong.text


def test_filters_choose_the_rows_and_remain_chosen(api: Api) -> None:
    html = api.http.get(f"/ui/jobs/{api.job_id}?outcome=measured&plan_kind=library", headers=HTML).text
    assert html.count('<tr class="measured">') == 1
    assert '<option value="library" selected>' in html
    empty = api.http.get(f"/ui/jobs/{api.job_id}?outcome=measured&plan_kind=&reason=", headers=HTML)
    assert empty.status_code == 200  # as sent by a browser without JavaScript


def test_a_bad_address_of_the_dashboard_is_a_page_for_people_and_a_problem_for_programs(api: Api) -> None:
    page = api.http.get("/ui/jobs/job-000000000000", headers=HTML)
    assert page.status_code == 404
    assert "<h1>404 Not Found</h1>" in page.text
    as_json = api.http.get("/ui/jobs/job-000000000000", headers={"Accept": "application/json"})
    assert (as_json.status_code, as_json.json()["status"]) == (404, 404)
    wrong = api.http.get(f"/ui/jobs/{api.job_id}?sort=colour", headers=HTML)
    assert wrong.status_code == 422
    assert "<code>sort</code>" in wrong.text


def test_what_a_client_sent_is_escaped(api: Api) -> None:
    page = api.http.get("/ui/jobs/<script>alert(1)</script>", headers=HTML)
    assert "<script>alert" not in page.text


@pytest.mark.slow
def test_a_server_without_jobs_says_how_to_submit_one(idle_api: Api) -> None:
    html = idle_api.http.get("/", headers=HTML).text
    assert "No job yet" in html
    assert "has no worker" in html


def test_the_page_of_a_job_tells_how_well_its_trials_were_forecast(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    page = f"/ui/jobs/{api.job_id}"
    assert "Too few: " in api.http.get(page, headers=HTML).text
    known = ForecastQuality(num_trials=41, rank_correlation=0.8612, regret=0.0123)
    monkeypatch.setattr(api.service, "forecast_quality", lambda job_id: known)
    text = api.http.get(page, headers=HTML).text
    section = text.split('id="forecast">')[1].split("</section>")[0]
    assert re.search(r"Over 41 fused trials .*0\.86.*1\.2 %", section, re.DOTALL)


def test_the_page_of_a_job_tells_for_how_long_it_is_without_progress(api: Api) -> None:
    found = api.get(f"/jobs/{api.job_id}")["since_progress"]
    for since, words in ((1, "1 trial since the last progress"), (7, "7 trials since the last progress")):
        with api.service._store.write() as session:
            jobs.row_of(session, api.job_id).since_progress = since
        assert api.get(f"/jobs/{api.job_id}")["since_progress"] == since
        assert words in api.http.get(f"/ui/jobs/{api.job_id}", headers=HTML).text
    with api.service._store.write() as session:
        jobs.row_of(session, api.job_id).since_progress = found


def test_the_front_page_the_job_and_its_verdict_show_the_same_figures(api: Api) -> None:
    finals = api.get(f"/jobs/{api.job_id}/best")["finals"]
    library, *ours = [row for row in finals if row["time_us"] is not None]
    fastest = min(ours, key=lambda row: row["time_us"])
    shown = fastest["time_us"], library["time_us"], fastest["speedup"]
    assert fastest["speedup"] != library["time_us"] / fastest["time_us"], "they are distinguished below"
    listed = next(job for job in api.get("/.json")["jobs"]["items"] if job["id"] == api.job_id)
    for job in (listed, api.get(f"/jobs/{api.job_id}"), api.get(f"/ui/jobs/{api.job_id}.json")["job"]):
        assert (job["best_us"], job["library_us"], job["best_speedup"]) == shown
    known = next(one for one in api.get("/ui/results.json")["jobs"]["items"] if one["source"] == api.job_id)
    assert (known["ours_us"], known["library_us"], known["speedup"]) == shown
    row = api.http.get("/", headers=HTML).text.split(f"/ui/jobs/{api.job_id}")[1].split("</tr>")[0]
    assert ratio(fastest["speedup"]) in row


def test_two_jobs_are_compared_by_the_fastest_finalist_of_each_kind(api: Api) -> None:
    finals = api.get(f"/jobs/{api.job_id}/best")["finals"]
    kinds = [row["candidate"]["plan_kind"] for row in finals]
    assert len(kinds) > len(set(kinds)), "a kind has several finalists, which are distinguished below"
    page = api.get("/ui/compare.json", params={"a": api.job_id, "b": api.job_id})
    groups = {group["heading"]: {row["name"]: row["first"] for row in group["rows"]} for group in page["groups"]}
    for kind in set(kinds):
        timed = [row for row in finals if row["candidate"]["plan_kind"] == kind and row["time_us"] is not None]
        fastest = min(timed, key=lambda row: row["time_us"])
        name = PlanKind(kind).heading
        assert groups["Times"][name] == microseconds(fastest["time_us"]), kind
        assert groups["Speed-up over the library"][name] == ratio(fastest["speedup"]), kind


def test_a_comparison_is_in_words_of_people(api: Api) -> None:
    html = api.http.get("/ui/compare", params={"a": api.job_id, "b": api.job_id}, headers=HTML).text
    cells = re.findall(r"<td>([^<]*)</td>", html)
    assert "yes" in cells, "a simulated one"
    assert {"True", "False", "None"} & set(cells) == set()
    assert not any("-&gt;" in cell for cell in cells)
    assert arrows(api.get(f"/jobs/{api.job_id}")["workload"]) in cells


def test_what_was_simulated_is_not_said_to_be_measured(api: Api) -> None:
    page = api.http.get(f"/ui/jobs/{api.job_id}", headers=HTML).text
    assert "On a simulated NVIDIA H200" in page
    assert "Measured on" not in page
