"""`tuner-client export`: each format has every trial, and can be read by the program that it is for."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
from pathlib import Path

import optuna
import pytest

from tests.service.client.conftest import Run
from tests.support.lanes import one_in
from tuner.client import Client, ExitCode
from tuner.client.documents.documents import Trial
from tuner.client.exports.axes import axes_of
from tuner.client.exports.t4 import results_of
from tuner.core.schedule.schedule import Schedule


@pytest.fixture(scope="module")
def trials(client: Client, job_id: str) -> list[Trial]:
    """The trials of the job."""
    return list(client.trials(job_id))


def test_a_table_has_a_row_per_trial_with_its_mark_and_a_column_per_axis(
    run: Run, job_id: str, trials: list[Trial]
) -> None:
    result = run("export", job_id, "--format", "csv")
    assert "simulated: they never ran on a card" in result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["number"] for row in rows] == [str(trial["number"]) for trial in trials]
    assert {row["simulated"] for row in rows} == {"True"}
    for row, trial in zip(rows, trials, strict=True):
        outcome = trial["outcome"]
        assert row["time_us"] == (str(outcome["time_us"]) if outcome["kind"] == "measured" else "")
        assert {name: row[name] for name in axes_of(trial["candidate"])} == {
            name: str(value) for name, value in axes_of(trial["candidate"]).items()
        }


def test_a_candidates_axes_are_all_of_its_schedules_fields_with_those_at_their_defaults(trials: list[Trial]) -> None:
    ours = next(trial["candidate"] for trial in trials if trial["candidate"]["schedule"])
    assert ours["schedule"] is not None
    schedule, axes = Schedule.from_json(ours["schedule"]), axes_of(ours)
    assert axes["tiles_0_m"] == schedule.tiling.tiles[0].m
    assert axes["interleave_kind"] == schedule.ordering.interleave.kind
    assert axes["cluster_m"] == 1
    library = next(trial["candidate"] for trial in trials if trial["candidate"]["schedule"] is None)
    assert axes_of(library) == {"plan_kind": "library"}


def test_results_say_of_each_trial_what_became_of_it_in_the_communitys_words(
    client: Client, job_id: str, trials: list[Trial]
) -> None:
    found = results_of(client.job(job_id), trials)
    for row, trial in zip(found["results"], trials, strict=True):
        outcome = trial["outcome"]
        figures = {one["name"]: one["value"] for one in row["measurements"]}
        assert (row["invalidity"] == "correct") == (row["correctness"] == 1) == (outcome["kind"] == "measured")
        assert figures["simulated"] == 1
        if outcome["kind"] == "measured":
            assert math.isclose(figures["time"], outcome["time_us"] / 1000)
            assert len(row["times"]["runtimes"]) == len(outcome["samples_us"])
        else:
            assert figures["reason"] == outcome["reason"]


@pytest.mark.parametrize(
    ("failure", "word"),
    [("compile_error", "compile"), ("hang", "timeout"), ("wrong_numbers", "correctness"), ("crash", "runtime")],
)
def test_a_failure_has_its_word(client: Client, job_id: str, trials: list[Trial], failure: str, word: str) -> None:
    failed = {"kind": "failed", "stage": "launch", "failure": failure, "reason": "r", "stage_s": {"build": 0.5}}
    rejected = {"kind": "rejected", "stage": "verify", "reason": "r", "stage_s": {}}
    both = [{**trials[0], "outcome": outcome} for outcome in (failed, rejected)]
    rows = results_of(client.job(job_id), both)["results"]  # type: ignore[arg-type]
    assert [row["invalidity"] for row in rows] == [word, "constraints"]
    assert rows[0]["times"] == {"runtimes": [], "compilation_time": 500.0}


def test_the_problem_names_the_best_kernel_and_the_values_that_each_axis_had(
    run: Run, client: Client, job_id: str, trials: list[Trial]
) -> None:
    found = json.loads(run("export", job_id, "--format", "t1").stdout)
    axes = {one["Name"]: one for one in found["ConfigurationSpace"]["TuningParameters"]}
    for trial in trials:
        for name, value in axes_of(trial["candidate"]).items():
            assert value in ast.literal_eval(axes[name]["Values"])
    assert (axes["num_stages"]["Type"], axes["swap_ab"]["Type"], axes["engine"]["Type"]) == ("int", "bool", "string")
    artifact = client.best(job_id)["artifact"]
    assert artifact is not None
    kernel = client.artifact(artifact["digest"]).manifest["kernel"]
    assert found["KernelSpecification"]["KernelName"] == kernel["name"]
    assert [one["Size"] for one in found["KernelSpecification"]["Arguments"] if one["Name"] == "x"] == [16 * 256]


# In CI, tests/unit/search/test_axes.py has the parameters of an Optuna trial.
@pytest.mark.soak
@pytest.mark.parametrize("temporary", one_in(4, ["feature%2Flogin", "plain", "run?a", "{x}#"]))
def test_optuna_loads_the_study_with_every_trial(
    run: Run, job_id: str, trials: list[Trial], tmp_path: Path, temporary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / temporary).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / temporary))
    file = tmp_path / "study.db"
    assert run("export", job_id, "--format", "optuna", "-o", str(file)).exit_code == ExitCode.OK
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    try:
        study = optuna.load_study(study_name=job_id, storage=storage)
        assert study.user_attrs["simulated"] is True
        assert [one.params for one in study.trials] == [axes_of(trial["candidate"]) for trial in trials]
        states = {"measured": "COMPLETE", "failed": "FAIL", "rejected": "PRUNED"}
        assert [one.state.name for one in study.trials] == [states[one["outcome"]["kind"]] for one in trials]
        best = min(one["outcome"]["time_us"] for one in trials if one["outcome"]["kind"] == "measured")
        assert study.best_value == best
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_the_trace_is_that_of_the_fastest_of_ours_unless_another_trial_is_named(run: Run, job_id: str) -> None:
    by_itself = run("export", job_id, "--format", "perfetto")
    rows = [row for row in json.loads(run("best", job_id, "--json").stdout)["finals"] if row["candidate"]["schedule"]]
    number = min(rows, key=lambda row: row["time_us"])["trial_number"]
    assert by_itself.stdout == run("export", job_id, "--format", "perfetto", "--trial", str(number)).stdout
    assert by_itself.stdout == run("trace", job_id, str(number)).stdout
    assert json.loads(by_itself.stdout)["traceEvents"]


def test_what_cannot_be_exported_says_why_and_writes_nothing(run: Run, job_id: str, tmp_path: Path) -> None:
    file = tmp_path / "out"
    wrong = run("export", job_id, "--format", "csv", "--trial", "3", "-o", str(file))
    assert (wrong.exit_code, "--trial needs --format perfetto" in wrong.stderr) == (ExitCode.USAGE, True)
    missing = run("export", "job-000000000000", "--format", "t4", "-o", str(file))
    assert missing.exit_code == ExitCode.NO_RESULT
    assert not file.exists()
