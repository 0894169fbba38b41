"""The dashboard without a browser: JSON forms, marks, errors."""

from __future__ import annotations

import re

import pytest
from markupsafe import escape

from tests.service.api.conftest import Api
from tuner.core.insight.forecast_quality import ForecastQuality

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
    assert f"Verdict: {as_json['best']['verdict']}" in html
    for row in as_json["best"]["finals"]:
        assert f"{row['time_us']:,.1f} µs" in html
    for sentence in as_json["best"]["finals"][as_json["best"]["winner_row"]]["candidate"]["words"]:
        assert escape(sentence) in html
    for outcome, count in as_json["outcome_counts"].items():
        assert outcome.replace("_", " ") in html
        assert f">{count}<" in html
    assert len(re.findall(r'<tr class="(?:measured|rejected|failed)">', html)) == len(as_json["trials"]["items"])
    assert sum(as_json["outcome_counts"].values()) == as_json["job"]["num_trials"]


def test_the_plot_has_the_baselines_and_the_curve(api: Api) -> None:
    html = api.http.get(f"/ui/jobs/{api.job_id}", headers=HTML).text
    for label in ("library", "two launches", "data sheet bound"):
        assert f">{label}</text>" in html
    assert "<polyline" in html


def test_every_figure_of_the_twin_is_marked_as_simulated(api: Api, path: str) -> None:
    html = api.http.get(path, headers=HTML).text
    rows = re.findall(r"<tr[^>]*>(?:(?!</tr>).)*µs.*?</tr>", html, re.DOTALL)
    assert rows
    assert all(">simulated</span>" in row for row in rows)
    headings = re.findall(r"<h2>(Verdict|Best so far|Best schedule)(.*?)</h2>", html)
    assert all(">simulated</span>" in rest for _, rest in headings)


def test_filters_choose_the_rows_and_remain_chosen(api: Api) -> None:
    html = api.http.get(f"/ui/jobs/{api.job_id}?outcome=measured&plan_kind=library", headers=HTML).text
    assert html.count('<tr class="measured">') == 1
    assert '<option value="library" selected>' in html


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
    section = text.split('<section id="forecast">')[1].split("</section>")[0]
    assert "simulated" in section
    assert re.search(r"Over 41 fused trials .*0\.86.*1\.2 %", section, re.DOTALL)


def test_the_front_page_the_job_and_its_verdict_show_the_same_times(api: Api) -> None:
    finals = api.get(f"/jobs/{api.job_id}/best")["finals"]
    times = {is_ours: [row["time_us"] for row in finals if (row["candidate"]["plan_kind"] != "library") is is_ours]
             for is_ours in (True, False)}  # fmt: skip
    shown = min(time_us for time_us in times[True] if time_us is not None), times[False][0]
    listed = next(job for job in api.get("/.json")["jobs"]["items"] if job["id"] == api.job_id)
    for job in (listed, api.get(f"/jobs/{api.job_id}"), api.get(f"/ui/jobs/{api.job_id}.json")["job"]):
        assert (job["best_us"], job["library_us"]) == shown
