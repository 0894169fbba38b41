"""`submit --schedule`: a job tries exactly the given schedules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.client.conftest import Run
from tests.support import builders
from tuner.client import Client
from tuner.client.errors import Refused
from tuner.client.exits import ExitCode
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import JobSpec

PAIR = ["--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "256"]
OTHER = ["--m", "16", "--d-in", "512", "--d-hidden", "512", "--d-out", "256"]


def file(folder: Path, name: str, schedule: Schedule, **more: Any) -> str:
    path = folder / name
    document = {"workload": builders.workload().to_json(), "gpu": "h200", "schedule": schedule.to_json(), **more}
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    first = builders.schedule()
    tiling = replace(first.tiling, num_stages=first.tiling.num_stages + 1)
    return [file(tmp_path, "one.json", first), file(tmp_path, "other.json", first.but(tiling=tiling))]


def tried(client: Client, job_id: str) -> list[tuple[str, Any]]:
    rows = (row["candidate"] for row in client.trials(job_id))
    return [(row["plan_kind"], (row["schedule"] or {}).get("tiling", {}).get("num_stages")) for row in rows]


def test_exactly_the_schedules_of_files_are_tried_beside_the_library(
    run: Run, client: Client, files: list[str]
) -> None:
    stages = builders.schedule().tiling.num_stages
    named = [word for path in files for word in ("--schedule", path)]
    job = json.loads(run("submit", *named, "--json").stdout)
    assert (job["pair"]["kind"], job["num_given"], job["budget"]["trials"]) == ("ffn", 2, 3)
    assert run("watch", job["id"]).exit_code == ExitCode.OK
    assert sorted(tried(client, job["id"]), key=str) == [("fused", stages), ("fused", stages + 1), ("library", None)]
    assert client.best(job["id"])["winner"] in ("fused", "library")
    kinds = ["--plan-kind", "fused", "--plan-kind", "two_launches"]
    job_id = run("submit", "ffn", *PAIR, "--schedule", files[0], *kinds).stdout.strip()
    run("watch", job_id)
    assert {kind for kind, _ in tried(client, job_id)} == {"library", "fused", "two_launches"}
    assert {row["candidate"]["plan_kind"] for row in client.best(job_id)["finals"]} >= {"library", "two_launches"}


def test_the_line_of_a_schedule_is_taken_as_it_is_printed(run: Run, client: Client, files: list[str]) -> None:
    named = [word for path in files for word in ("--schedule", path)]
    first = run("submit", *named).stdout.strip()
    run("watch", first)
    line = next(row["candidate"]["text"] for row in client.trials(first) if row["candidate"]["schedule"])
    job_id = run("submit", "ffn", *PAIR, "--schedule", line).stdout.strip()
    run("watch", job_id)
    again = [row["candidate"] for row in client.trials(job_id) if row["candidate"]["schedule"]]
    assert [one["text"] for one in again] == [line]


# In CI, test_studies.py has sweeps, and tests/unit/client/test_following.py asks for one.
@pytest.mark.soak
def test_a_sweep_tries_all_that_it_makes_of_a_schedule_in_one_job(run: Run, client: Client, files: list[str]) -> None:
    job = json.loads(run("submit", "--schedule", files[0], "--sweep", "signals", "--json").stdout)
    assert run("watch", job["id"]).exit_code == ExitCode.OK
    rows = [row["candidate"]["schedule"] for row in client.trials(job["id"]) if row["candidate"]["schedule"]]
    assert len(rows) == job["num_given"] >= 2
    assert len({json.dumps(row["tiling"]) for row in rows}) == 1, "the kernel stays"
    assert len({row["ordering"]["granularity"] for row in rows}) >= 2
    unknown = run("submit", "--schedule", files[0], "--sweep", "colours")
    assert "use 'rasters', 'merges', 'signals', 'launches' or 'shares'" in unknown.stderr


def test_files_that_do_not_go_together_are_refused(run: Run, files: list[str], tmp_path: Path) -> None:
    for options, words in (
        (["--plan-kind", "fused", *PAIR], "--plan-kind needs --schedule"),
        (["--schedule", files[0], "--plan-kind", "merged"], "'merged' is unknown; there are two_launches"),
        (["--schedule", files[0], *OTHER], "the schedules are for ffn fp16 M=16 256 -> 512 -> 256, but the job is for"),
        (
            ["--schedule", files[0], *("1,16" if word == "16" else word for word in PAIR)],
            "--schedule is for one number of rows",
        ),
        (["--schedule", str(tmp_path / "none.json")], "cannot be read"),
        (["--schedule", str(builders.schedule())], "is a line, which does not include its workload"),
        (["--schedule", "mma 16x64 | row+row", *PAIR], "does not begin with an engine and tiles"),
        (["--schedule", file(tmp_path, "odd.json", builders.schedule(), odd=1)], "odd is not a known key there"),
    ):
        result = run("submit", *options)
        assert (result.exit_code, words in " ".join(result.stderr.split())) == (ExitCode.USAGE, True), result.stderr


def test_a_schedule_that_is_not_legal_is_refused_by_its_number(client: Client) -> None:
    workload, schedule = builders.workload(), builders.schedule()
    pair = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}
    assert workload.describe() == "ffn fp16 M=16 256 -> 512 -> 256"
    broken = schedule.to_json()
    broken["tiling"] = {**broken["tiling"], "num_stages": 0}
    given = [{"plan_kind": "fused", "schedule": one} for one in (schedule.to_json(), broken)]
    with pytest.raises(Refused, match=r"schedules\.1\.schedule: is not legal for this pair"):
        client.submit({"pair": pair, "schedules": given})
    with pytest.raises(Refused, match=r"schedules\.0\.plan_kind"):
        client.submit({"pair": pair, "schedules": [{"plan_kind": "library", "schedule": {}}]})


def test_a_job_that_was_given_schedules_survives_its_json_and_is_another_problem() -> None:
    spec = builders.spec(16)
    assert "tried" not in spec.to_json()
    given = replace(spec, tried=(fused(builders.schedule()),))
    assert JobSpec.from_json(json.loads(json.dumps(given.to_json()))) == given
    assert given.problem_digest != spec.problem_digest


def test_a_body_takes_lines_too_and_says_of_a_broken_one_what_is_wrong(client: Client) -> None:
    pair = {"kind": "ffn", "m": 16, "d_in": 256, "d_hidden": 512, "d_out": 256}
    line = str(builders.schedule())
    job = client.submit({"pair": pair, "schedules": [{"schedule": f" {line}\n"}]})
    same = client.submit(
        {"pair": pair, "schedules": [{"plan_kind": "fused", "schedule": builders.schedule().to_json()}]}
    )
    assert (job["num_given"], same["id"]) == (1, job["id"]), "it is the same problem"
    for schedule, words in (
        (line.replace("row+row", "row+rwo"), r"schedules\.0\.schedule: .*'rwo' is not a valid RasterKind"),
        (line.partition(" | ")[0], r"schedules\.0\.schedule: has 1 parts separated by bars"),
        (line.replace("x", f"{2**31}x", 1), r"schedules\.0\.schedule: has the number 16?2147483648"),
        (line * 100, r"schedules\.0\.schedule"),
    ):
        with pytest.raises(Refused, match=words):
            client.submit({"pair": pair, "schedules": [{"schedule": schedule}]})


# In CI, tests/unit/client/test_following.py takes a trial.
@pytest.mark.soak
def test_a_trial_of_the_service_is_taken_by_its_name(run: Run, client: Client, files: list[str]) -> None:
    first = run("submit", "--schedule", files[0], "--plan-kind", "two_launches").stdout.strip()
    run("watch", first)
    (number,) = [row["number"] for row in client.trials(first) if row["candidate"]["schedule"]]
    job_id = run("submit", "--schedule", f"{first}/{number}", "--seed", "7").stdout.strip()
    run("watch", job_id)
    assert tried(client, job_id) == tried(client, first)
    for name, words in (
        (f"{first}/0", "ran the library, which has no schedule"),
        (f"{first}/99", "has no trial 99"),
        ("job-none/1", "job-none"),
    ):
        result = run("submit", "--schedule", name)
        assert result.exit_code != 0
        assert words in " ".join(result.stderr.split()), result.stderr
