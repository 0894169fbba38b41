"""Several jobs are followed until all have ended, an interrupt says what goes on, and schedules are taken from trials.
No server runs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.support import builders
from tuner.client import Client, ExitCode
from tuner.client.commands.job_commands import delete, retry, watch
from tuner.client.commands.submit import submit
from tuner.client.documents.given import GivenSchedules, given_schedules
from tuner.client.errors import Refused, Unreachable
from tuner.client.follow import many
from tuner.client.follow.interrupted import what_goes_on
from tuner.core.problem.asked import pair_of

PAIR = pair_of(builders.workload())
LINE = "mma 16x64x64+16x64x64 s2 w4 | row+row producer_first row-sync static 1/SM less 130 SMs"


def job(job_id: str, state: str) -> dict[str, Any]:
    return {
        "id": job_id,
        "state": state,
        "workload": "a pair",
        "simulated": True,
        "eta_s": None,
        "num_trials": 4,
        "budget": {"trials": 4},
        "is_paused": False,
        "best_speedup": 1.25,
    }


class Jobs:
    """Answers like a service, each of whose jobs has the given states one after another."""

    url = "http://service"

    def __init__(self, **states: str) -> None:
        self._states = {name.replace("_", "-"): of_it.split() for name, of_it in states.items()}
        self.asked: list[str] = []

    def job(self, job_id: str) -> dict[str, Any]:
        self.asked.append(job_id)
        left = self._states[job_id]
        if (state := left.pop(0) if len(left) > 1 else left[0]) == "lost":
            raise Unreachable("the server is being started")
        return job(job_id, state)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_ASK_EVERY_S", 0.0)


def test_several_are_followed_until_the_last_one_has_ended_and_each_state_is_a_line_once() -> None:
    jobs = Jobs(job_1="searching succeeded", job_2="queued lost searching searching failed")
    screen = io.StringIO()
    found = many.follow_many(jobs, ["job-1", "job-2"], Console(file=screen))  # type: ignore[arg-type]
    assert [(one["id"], one["state"]) for one in found] == [("job-1", "succeeded"), ("job-2", "failed")]
    assert jobs.asked.count("job-1") == 2, "one that has ended is not asked for again"
    said = [line.rpartition(": ")[0] for line in screen.getvalue().splitlines()]
    assert said == ["job-1: searching", "job-2: queued", "job-1: succeeded", "job-2: searching", "job-2: failed"]


def test_watch_shows_each_of_several_once_as_a_table_or_as_documents() -> None:
    jobs = Jobs(job_1="succeeded", job_2="succeeded")
    shown = CliRunner().invoke(watch, ["job-1", "job-2", "job-1"], obj=jobs)
    assert shown.exit_code == 0, shown.output
    assert "2 of 2 ended" in shown.stdout
    assert [shown.stdout.count(one) for one in ("job-1", "job-2")] == [1, 1]
    documents = CliRunner().invoke(watch, ["job-2", "job-1", "--json"], obj=jobs).stdout.splitlines()
    assert [json.loads(line)["id"] for line in documents] == ["job-2", "job-1"]


def test_an_interrupt_says_what_goes_on_how_to_come_back_and_how_to_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    for ids, verb, them in ((["batch-1"], "continues", "it"), (["job-1", "job-2"], "continue", "them")):
        with pytest.raises(click.exceptions.Exit) as ended, what_goes_on(Jobs(), ids, "again"):  # type: ignore[arg-type]
            raise KeyboardInterrupt
        assert ended.value.exit_code == ExitCode.FAULT
        named, client = " ".join(ids), "tuner-client --url http://service"
        assert [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()] == [
            "",
            f"tuner-client: {named} {verb} on the service.",
            f"come back: {client} watch {named}",
            "again",
            f"end {them}: {client} cancel {named}",
        ]


def given(*names: str, kinds: tuple[str, ...] = ()) -> GivenSchedules:
    """The schedules of trials of a service in which trial 0 of each job ran the library."""

    def trial_of(job_id: str, number: int) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
        schedule = builders.schedule().to_json() if number else None
        return PAIR, {"plan_kind": "two_launches" if number else "library", "schedule": schedule}, "simulated:h100"

    found = given_schedules(names, kinds, None, trial_of=trial_of)
    assert found is not None
    return found


def test_a_trial_gives_its_workload_its_schedule_and_its_plan_kind() -> None:
    found = given("job-1/3")
    assert (found.workload, found.pair) == (builders.workload(), PAIR)
    assert found.candidates == [{"plan_kind": "two_launches", "schedule": builders.schedule().to_json()}]
    assert [one["plan_kind"] for one in given("job-1/3", kinds=("fused", "fused_pdl")).candidates] == [
        "fused",
        "fused_pdl",
    ]
    with pytest.raises(click.UsageError, match="job-1/0 ran the library, which has no schedule; choose a trial"):
        given("job-1/0")
    assert found.for_other_gpus("h100") == []
    assert [words.split(", but")[0] for words in found.for_other_gpus("h200")] == ["job-1/3 is for h100"]


@pytest.mark.parametrize(("gpu", "options", "words"), [
    ("h100", [], "is for h100, but the job runs on simulated:h200, the service's default: "
     "to choose, pass --target h100 or --target simulated:h200"),
    ("h100", ["--target", "simulated:h200"], None),
    ("h200", [], None),
])  # fmt: skip
def test_a_file_for_another_gpu_than_the_services_default_is_reported(
    gpu: str, options: list[str], words: str | None, tmp_path: Path
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        job = {"id": "job-1", "target": "simulated:h200", "links": {"page": "/ui/jobs/job-1"}}
        return httpx.Response(202, json=job)

    path = tmp_path / "one.json"
    document = {"workload": builders.workload().to_json(), "gpu": gpu, "schedule": builders.schedule().to_json()}
    path.write_text(json.dumps(document))
    with Client("http://service", transport=httpx.MockTransport(answer)) as client:
        sent = CliRunner().invoke(submit, ["--schedule", str(path), *options], obj=client)
    assert (sent.exit_code, sent.stdout) == (0, "job-1\n"), sent.output
    warnings = [f"tuner-client: {path} {words}"] if words else []
    assert sent.stderr.splitlines() == ["http://service/ui/jobs/job-1", *warnings]


def test_a_job_with_a_sweep_asks_for_it() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(202, json={"id": "job-1", "target": "h200", "links": {"page": "/ui/jobs/job-1"}})

    options = ["--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "256", "--schedule", LINE]
    with Client("http://service", transport=httpx.MockTransport(answer)) as client:
        sent = CliRunner().invoke(submit, [*options, "--sweep", "signals", "--seed", "7"], obj=client)
    assert (sent.exit_code, sent.stdout) == (0, "job-1\n"), sent.output
    (body,) = bodies
    assert (body["sweep"], body["seed"], len(body["schedules"])) == ("signals", 7, 1)


def test_of_a_batch_each_job_is_retried_though_one_is_refused_and_no_new_id_is_lost() -> None:
    class Batch:
        def batch_jobs(self, batch_id: str) -> list[dict[str, Any]]:
            states = {"job-1": "failed", "job-2": "cancelled", "job-3": "succeeded", "job-4": "failed"}
            return [{"job": job(job_id, state)} for job_id, state in states.items()]

        def change(self, job_id: str, verb: str) -> dict[str, str]:
            if job_id == "job-2":
                raise Refused("the quota is used up")
            return {"id": f"{job_id}-again"}

    result = CliRunner().invoke(retry, ["batch-1"], obj=Batch())
    assert result.stdout.split() == ["job-1-again", "job-4-again"]
    assert isinstance(result.exception, Refused)


def test_a_batch_is_deleted_as_a_whole_and_each_kept_job_is_named() -> None:
    class Batch:
        def delete_batch(self, batch_id: str) -> list[str]:
            assert batch_id == "batch-1"
            return ["job-2"]

        def delete(self, job_id: str) -> dict[str, Any]:
            assert job_id == "job-3"
            return {"owners": ["bo"]}

    result = CliRunner().invoke(delete, ["batch-1", "job-3"], obj=Batch())
    assert result.stdout == "batch-1 deleted\njob-2 is kept, as others need it\njob-3 is kept for bo\n"
