"""`tuner orders` and `tuner explain` on the command line; the service's commands are tested with the service."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import builders
from tests.support.waterfalls import counted
from tuner.cli import main
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import JobState
from tuner.core.trial.records import Best, FinalRow, InspectionKind, Verdict
from tuner.packs.signing import KEY_FILE
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.trials import inspections, trials


def test_orders_prints_the_least_traffic_what_each_raster_loses_and_paths() -> None:
    result = CliRunner().invoke(main, ["orders", "4", "4", "--cache", "4", "--list", "2"])
    assert result.exit_code == 0
    first, *lines = result.stdout.splitlines()
    assert first.startswith("4 x 4 tiles, a cache of 4 panels: at least 10 panels from memory; 2,816 paths")
    lost = {line.split()[0]: line for line in lines if "panels" in line}
    assert lost["row"].split()[1:] == ["20", "panels,", "10", "more", "(100%)"]
    assert {"column", "hilbert", "morton", "snake1", "panel2"} <= set(lost)
    assert lines[-4:-3] == [" 0  1  4  6"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["1000", "1000", "--cache", "8"], "the limit is 4 x 4; take a corner of the grid, or the hilbert raster"),
        (["3", "3", "--cache", "1"], "1 panels cannot hold the operands of one tile"),
        (["0", "3", "--cache", "4"], "0 x 3 has no tiles"),
    ],
)
def test_what_has_no_answer_is_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["orders", *arguments])
    assert result.exit_code == 1
    assert sentence in result.stderr


def explained(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["explain", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_schedule_in_a_file_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "asked.json"
    asked = {"workload": builders.workload().to_json(), "gpu": "h200", "schedule": builders.schedule().to_json()}
    file.write_text(json.dumps(asked))
    code, words, _ = explained(str(file))
    assert code == 0
    assert "Bottleneck: " in words
    file.write_text(json.dumps({**asked, "gpu": "abacus"}))
    code, _, complaint = explained(str(file))
    assert code == 1
    assert "'abacus'" in complaint
    assert "h200" in complaint
    code, _, complaint = explained(str(tmp_path / "none.json"))
    assert code == 1
    assert "pass a file, or a job's id" in complaint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": None}, "workload does not have the form"),
        ({"workload": {}}, "workload has no dtype"),
        ({"schedule": {"tiling": 5}}, "schedule has no ordering"),
        ({"schedule": 5}, "schedule does not have the form"),
        ({"gpu": None}, "gpu is missing"),
    ],
)
def test_a_file_of_no_schedule_is_refused_by_its_key(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    file = tmp_path / "asked.json"
    asked = {"workload": builders.workload().to_json(), "gpu": "h200", "schedule": builders.schedule().to_json()}
    file.write_text(json.dumps({**asked, **changes}))
    code, _, complaint = explained(str(file))
    assert (code, f"Error: {file}: {words}" in complaint) == (1, True), complaint
    file.write_text("{")
    assert f"Error: {file}: is not valid JSON from line 1, column 2; pass workload" in explained(str(file))[2]


def test_a_saved_manifest_is_explained_for_the_gpu_of_its_job(tmp_path: Path) -> None:
    file, spec = tmp_path / "manifest.json", {"target_id": "simulated:h200"}
    manifest = {"workload": builders.workload().to_json(), "schedule": builders.schedule().to_json(), "spec": spec}
    file.write_text(json.dumps(manifest))
    code, words, complaint = explained(str(file))
    assert (code, complaint) == (0, "")
    assert "H200" in words


def test_the_fused_result_of_a_job_is_explained(tmp_path: Path) -> None:
    candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=builders.schedule())
    row = FinalRow(candidate=candidate, trial_number=1, time_us=9.0, spread=0.0, speedup=1.1, speedup_ci95=None)
    store = Store.open(tmp_path)
    with store.write() as session:
        done = jobs.insert(session, builders.spec(), now=1.0).id
        open_job = jobs.insert(session, builders.spec(32), now=1.0).id
        bests.insert(
            session,
            Best(
                job_id=done,
                verdict=Verdict.FUSED_WINS,
                winner=PlanKind.FUSED,
                tie_band=0.01,
                procedure=None,
                finals=(row,),
                reference_us=1.0,
                artifact_digest=None,
                environment=Environment(gpu_name="simulated NVIDIA H200", simulated=True),
            ),
        )
    store.close()
    code, words, _ = explained(done, "--data", str(tmp_path))
    assert code == 0
    assert str(builders.schedule()) in words
    assert "Measured (simulated): fused 9.0 us in the finals, 1.10 times the library's speed" in words
    assert "Forecasts of this job: too few" in words
    assert words.index("Measured") < words.index("Bounds: ")
    code, _, complaint = explained(open_job, "--data", str(tmp_path))
    assert code == 1
    assert "has no result with a tuner schedule" in complaint
    code, _, complaint = explained("job-000000000000", "--data", str(tmp_path))
    assert code == 1
    assert "job-000000000000" in complaint


def test_where_the_time_of_a_trial_goes_is_told_in_bars(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with store.write() as session:
        job_id, of_card = (
            jobs.insert(session, builders.spec(target_id=target), now=1.0).id for target in ("simulated:h200", "h200")
        )
        for one in (job_id, of_card):
            jobs.set_state(session, one, JobState.SEARCHING, 1.0)
        for one, number in ((job_id, 0), (job_id, 1), (of_card, 0)):
            trials.record(session, one, builders.trial(number, builders.measured(100.0)), 1.0)
        kind = InspectionKind.COUNTERS
        asked, _ = inspections.ask(session, job_id, 1, kind, None, is_urgent=True, now=2.0)
        inspections.finish(session, asked.seq, counted(100.0), (), 3.0)
    store.close()
    code, words, _ = explained("--waterfall", f"{job_id}/1", "--data", str(tmp_path))
    assert code == 0
    assert "   45.00 µs  45.0%  multiplications that the workload needs" in words
    assert "   10.00 µs  10.0%  launches, and gaps between runs (not measured directly:" in words
    assert words.splitlines()[-1] == "The bars add up to 100.00 µs of 100.00, within 5%."
    code, _, complaint = explained("--waterfall", f"{job_id}/0", "--data", str(tmp_path))
    assert (code, "the simulated GPU has fewer counters than a waterfall needs" in complaint) == (1, True)
    complaint = explained("--waterfall", f"{of_card}/0", "--data", str(tmp_path))[2]
    assert f"no counters were collected; `tuner-client counters {of_card} 0` collects counters" in complaint
    code, _, complaint = explained("--waterfall", job_id, "--data", str(tmp_path))
    assert (code, "is not a trial; use JOB/TRIAL" in complaint) == (2, True)


PAIR = ("--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "256")


@pytest.mark.slow
def test_a_line_is_explained_and_proven_with_the_options_of_its_pair() -> None:
    line = str(builders.schedule())
    for command, said in (("explain", "Bounds: "), ("prove", "Liveness: ")):
        for target, name in (((), "H200"), (("--target", "simulated:h100"), "H100")):
            result = CliRunner().invoke(main, [command, f" {line} ", *PAIR, *target])
            assert result.exit_code == 0, result.stderr
            assert result.stdout.startswith(f"ffn fp16 M=16 256 -> 512 -> 256 on {name}"), result.stdout
            assert said in result.stdout
    for arguments, said in (
        ((line,), "describe a pair with --m, --d-in, --d-hidden, --d-out"),
        ((line, *PAIR, "--target", "z80"), "there is no GPU called 'z80'"),
        ((line.replace("row+row", "row+rwo"), *PAIR), "'rwo' is not a valid RasterKind"),
        (("none.json", *PAIR), "--m, --d-in, --d-hidden, --d-out: only allowed with a LINE"),
        (("job-000000000000",), "choose one trial of the job"),
    ):
        result = CliRunner().invoke(main, ["prove", *arguments])
        assert result.exit_code in (1, 2)
        assert said in " ".join(result.stderr.split())


def test_a_trial_of_a_job_is_explained_and_proven_by_its_name(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with store.write() as session:
        job_id = jobs.insert(session, builders.spec(), now=1.0).id
        jobs.set_state(session, job_id, JobState.SEARCHING, 1.0)
        apart = Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=builders.schedule())
        for number, candidate in enumerate((LIBRARY, apart)):
            trial = replace(builders.trial(number, builders.measured(100.0)), candidate=candidate)
            trials.record(session, job_id, trial, 1.0)
    store.close()
    place = ("--data", str(tmp_path))
    code, words, _ = explained(f"{job_id}/1", *place)
    assert (code, "Measured (simulated): 100.0 us, as trial 1." in words) == (0, True)
    result = CliRunner().invoke(main, ["prove", f"{job_id}/1", *place])
    assert result.exit_code == 0, result.stderr
    assert ", two launches: " in result.stdout
    for number, said in ((0, "ran the library, which has no schedule"), (9, "has no trial 9")):
        result = CliRunner().invoke(main, ["prove", f"{job_id}/{number}", *place])
        assert (result.exit_code, said in result.stderr) == (1, True)


def test_the_signing_key_is_shown_and_made_anew(tmp_path: Path) -> None:
    missing = CliRunner().invoke(main, ["key", "show", "--data", str(tmp_path / "data")])
    assert (missing.exit_code, "there is no folder" in missing.stderr, (tmp_path / "data").exists()) == (1, True, False)
    (tmp_path / "data").mkdir()

    def key(command: str) -> str:
        result = CliRunner().invoke(main, ["key", command, "--data", str(tmp_path / "data")])
        assert result.exit_code == 0, result.stderr
        return result.stdout.strip()

    first = key("show")
    assert key("show") == first
    second = key("rotate")
    assert key("show") == second != first
    (tmp_path / "data" / KEY_FILE).chmod(0o644)
    result = CliRunner().invoke(main, ["key", "show", "--data", str(tmp_path / "data")])
    assert (result.exit_code, "can be read by others" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "command",
    [
        "gc",
        "audit",
        "token list",
        "token revoke tok-0123456789ab",
        "explain job-0123456789ab",
        "db prune --keep 1",
        "db check",
        "db backup FILE",
    ],
)
def test_a_folder_without_a_database_is_refused_and_not_made(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "misspelled"
    result = CliRunner().invoke(main, [*command.split(), "--data", str(folder)])
    assert (result.exit_code, folder.exists()) == (1, False)
    assert f"{folder} has no database; pass a service's data folder as --data" in result.stderr


@pytest.mark.parametrize("command", ["audit", "token list", "db check", "db prune --keep 1"])
def test_a_url_of_no_database_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*command.split(), "--database-url", f"sqlite:///{tmp_path}/misspelled.db"])
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "misspelled.db; pass a service's database as --database-url" in result.stderr


def test_a_check_of_a_database_that_does_not_answer_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "postgresql://nobody@127.0.0.1:1/none"
    result = CliRunner().invoke(main, ["db", "check", "--database-url", url])
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "cannot be used" in result.stderr


def test_certificates_without_a_cluster_are_refused_since_they_are_not_of_https(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--tls", str(tmp_path), "--data", str(tmp_path / "data")])
    assert (result.exit_code, "add its --scheduler" in result.stderr, (tmp_path / "data").exists()) == (2, True, False)


@pytest.mark.parametrize(
    "command",
    [
        ["db", "upgrade"],
        ["db", "check"],
        ["migrate"],
        ["gc"],
        ["key", "show"],
        ["key", "rotate"],
        ["db", "prune", "--keep", "1"],
    ],
    ids=" ".join,
)
def test_a_folder_that_is_misspelled_is_not_made(tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "mistyped"
    refused = CliRunner().invoke(main, [*command, "--data", str(folder)])
    assert (refused.exit_code, folder.exists()) == (1, False), refused.output
    assert str(folder) in refused.stderr
