"""Prometheus metrics: their values are correct, and the Grafana dashboard uses no other metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.service.api.conftest import Api, measuring
from tests.service.service.helpers import SickCard
from tests.support.repository import ROOT
from tests.support.serving import body, listening, running_service
from tests.support.waiting import wait_until

ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/tuner.json").read_text())


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A process counts what it has measured itself."""
    with measuring(tmp_path_factory.mktemp("api") / "data") as api:
        yield api


def scrape(http: httpx.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The value of each metric, by name and labels."""
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    """The sum over all samples that have the labels."""
    return sum(count for (one, has), count in found.items() if one == name and labels.items() <= set(has))


@pytest.mark.slow
def test_the_figures_agree_with_the_job(api: Api) -> None:
    job, found = api.service.job(api.job_id), scrape(api.http)
    assert value(found, "tuner_trials_total", outcome="measured") == job.num_measured
    assert value(found, "tuner_trials_total", outcome="failed") == job.num_failed
    assert value(found, "tuner_trials_total", target="simulated:h200", worker="0") == job.num_trials
    assert value(found, "tuner_jobs", state="succeeded") == 1
    assert value(found, "tuner_failures_total") == job.num_failed
    trials = api.service.trials(api.job_id, limit=500).items
    num_simulated = sum("simulate" in trial.outcome.stage_s for trial in trials)
    assert value(found, "tuner_stage_seconds_count", stage="simulate") == num_simulated >= job.num_measured
    assert 0 < value(found, "tuner_card_busy_seconds_total") < job.search_s + 60
    assert value(found, "tuner_database_up") == 1
    assert value(found, "tuner_card_quarantined") == 0


def test_the_file_for_grafana_asks_for_metrics_and_labels_that_there_are(api: Api) -> None:
    found = scrape(api.http)
    names = {name for name, _ in found}
    labels = {label for _, has in found for label, _ in has}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            asked = set(re.findall(r"\btuner_\w+", target["expr"]))
            # After a job without failures and without a quarantine, there is no sample of these.
            assert asked, panel["title"]
            assert asked - names <= {"tuner_failures_total"}, panel["title"]
            by = {
                label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")
            }
            assert (by | set(re.findall(r"{{(\w+)}}", target["legendFormat"]))) - labels <= {"kind"}


def test_the_page_lists_exactly_the_metrics(api: Api) -> None:
    page = (ROOT / "docs/operating.md").read_text()
    families = {family.name for family in text_string_to_metric_families(api.http.get("/metrics").text)}
    listed = {name.removesuffix("_total") for name in re.findall(r"^\| `(tuner_\w+)", page, re.MULTILINE)}
    assert listed == families


def test_no_label_is_a_shape_or_an_id(api: Api) -> None:
    labels = {label for _, has in scrape(api.http) for label, _ in has}
    assert labels <= {"target", "worker", "outcome", "kind", "stage", "state", "le", "card"}


def test_the_alert_rules_ask_for_metrics_and_labels_that_there_are(api: Api) -> None:
    families = {family.name for family in text_string_to_metric_families(api.http.get("/metrics").text)}
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        asked = set(re.findall(r"\btuner_\w+", rule["expr"])) - {"tuner"}
        assert {name.removesuffix("_total") for name in asked} <= families, rule["alert"]
        assert asked or rule["expr"].startswith("up{"), rule["alert"]
        shown = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert shown <= {"instance", "target", "worker", "card"}, rule["alert"]
    promtool = shutil.which("promtool")
    if promtool is not None:
        subprocess.run([promtool, "check", "rules", str(ROOT / "deploy/prometheus/alerts.yml")], check=True)


def test_a_queue_ages_and_a_quarantine_shows(tmp_path: Path) -> None:
    card = SickCard(num_trials=2)
    with (
        running_service(tmp_path / "data", evaluators=[card]) as service,
        listening(service) as url,
        httpx.Client(base_url=url) as http,
    ):
        http.post("/jobs", json=body())
        http.post("/jobs", json=body(pair={**body()["pair"], "m": 32}))
        wait_until(lambda: value(scrape(http), "tuner_quarantines_total", target="simulated:h200") >= 1)
        found = scrape(http)
        assert value(found, "tuner_card_quarantined") == 1
        assert value(found, "tuner_queue_age_seconds", target="simulated:h200") > 0
        assert value(found, "tuner_jobs", state="queued") == 1
        card.is_fit.set()
