"""Imported winners of another search: jobs start with them, but they are never returned as results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.service.api.conftest import Api
from tests.support.serving import SMALL_PAIR, listening, running_service, wait_until_final
from tuner.client import Client, ExitCode
from tuner.client.cli import main
from tuner.client.commands.imports import body_of
from tuner.client.documents.documents import FfnPair
from tuner.client.exports.t4 import results_of
from tuner.wire.requests.requests import TuneRequest

PAIR: FfnPair = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}


@pytest.fixture
def file(api: Api, tmp_path: Path) -> Path:
    """The export file of a service."""
    job, trials = api.http.get(f"/jobs/{api.job_id}").json(), api.http.get(f"/jobs/{api.job_id}/trials").json()
    path = tmp_path / "t4.json"
    path.write_text(json.dumps(results_of(job, trials["items"])))
    return path


@pytest.mark.slow
def test_a_job_begins_with_what_was_imported_and_nothing_else_knows_it(file: Path, tmp_path: Path) -> None:
    body = body_of(file)
    with running_service(tmp_path / "data") as service, listening(service) as url, Client(url) as client:
        run = lambda: CliRunner().invoke(main, ["--url", url, "import", str(file)])  # noqa: E731
        first, again = run(), run()
        assert (first.exit_code, again.exit_code) == (ExitCode.OK, ExitCode.OK), first.stderr
        num = len(body["winners"])
        assert (
            f"{num} schedules of {body['source']} imported for simulated:h200; 0 had already been imported"
            in first.stderr
        )
        assert (
            f"0 schedules of {body['source']} imported for simulated:h200; {num} had already been imported"
            in again.stderr
        )
        assert list(client.jobs()) == []
        asked = CliRunner().invoke(main, ["--url", url, "best", "--m", "16", "--d-in", "256", "--d-hidden", "512",
                                          "--d-out", "256", "--match", "any"])  # fmt: skip
        assert asked.exit_code == ExitCode.NO_RESULT
        asked_for = TuneRequest.model_validate({"pair": PAIR, "budget": {"trials": 12}})
        job, _ = service.submit(asked_for.to_spec("simulated:h200"))
        assert wait_until_final(service, job.id) == "succeeded"
        uses = client.job(job.id)["priors_used"]
        assert {use["source"] for use in uses} == {f"imported {body['source']}"}
        tried = [use["candidate"]["schedule"] for use in uses]
        assert all(schedule in [one["schedule"] for one in body["winners"]] for schedule in tried)
        assert all(use["simulated"] and use["outcome"] for use in uses)


def test_the_fastest_of_each_kind_of_ours_are_taken(file: Path) -> None:
    winners = body_of(file)["winners"]
    kinds = [one["plan_kind"] for one in winners]
    assert "library" not in kinds
    assert max(map(kinds.count, kinds)) <= 2
    rows = [row for row in json.loads(file.read_text())["results"] if row["invalidity"] == "correct"]
    for kind in set(kinds):
        times = [row["measurements"][0]["value"] for row in rows if row["configuration"]["plan_kind"] == kind]
        assert winners[kinds.index(kind)]["time_us"] == pytest.approx(1000 * min(times))


def refused(api: Api, body: Any, **changes: Any) -> str:
    """The refusal of a body by `POST /imports`."""
    response = api.http.post("/imports", json={**body, **changes})
    assert response.status_code == 422, response.text
    return str(response.json()["detail"])


def test_what_is_no_legal_schedule_for_pair_and_target_is_refused_by_its_name(api: Api, file: Path) -> None:
    body = body_of(file)
    good = body["winners"][0]
    tiling = good["schedule"]["tiling"]

    def with_tiling(**changes: Any) -> list[Any]:
        return [good, {**good, "schedule": {**good["schedule"], "tiling": {**tiling, **changes}}}]

    assert "winners.1.schedule: is not legal for this pair" in refused(api, body, winners=with_tiling(num_stages=90))
    assert "winners.1.schedule: is not valid" in refused(api, body, winners=with_tiling(num_stages="many"))
    assert "winners.1.schedule: is not valid" in refused(api, body, winners=with_tiling(engine="magic"))
    assert "winners.0.schedule: is not valid" in refused(api, body, winners=[{**good, "schedule": {}}])
    assert "winners.0.schedule" in refused(api, body, winners=with_tiling(tiles=tiling["tiles"][:1])[1:])
    assert "which has no schedule" in refused(api, body, winners=[{**good, "plan_kind": "library"}])
    assert "there is no GPU called 'h9000'" in refused(api, body, target="h9000")
    assert "winners" in refused(api, body, winners=[])
    assert "time_us" in refused(api, body, winners=[{**good, "time_us": -1}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not valid JSON"),
        ("[]", "has no tuner schedules; pass a file written by"),
        ('{"schema_version": "1.0.0", "results": []}', "has no tuner schedules; pass a file written by"),
        ('{"tuner": {"job": {}}, "results": []}', "has no measured tuner schedule"),
        (
            '{"tuner": {"job": {}}, "results": [{"invalidity": "correct"}]}',
            "has no tuner schedules; pass a file written by",
        ),
    ],
)
def test_a_file_of_another_program_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    result = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", "import", str(path)])
    assert (result.exit_code, message in result.stderr) == (ExitCode.USAGE, True)
    assert str(path) in result.stderr
    assert "Error(" not in result.stderr, "no exception of Python"


def test_the_pair_of_the_tests_is_that_of_the_service() -> None:
    assert PAIR.items() <= SMALL_PAIR.items()
