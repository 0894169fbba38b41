"""The command line with a real server: output on stdout and stderr, and every exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from tests.service.client.conftest import Run
from tests.support.bad_chains import BAD_CHAINS, BAD_FORMS
from tests.support.repository import ROOT
from tests.support.serving import SMALL_PAIR, Server
from tests.support.waiting import wait_until
from tuner.client import Client, ExitCode
from tuner.client.cli import COMMANDS, main
from tuner.client.errors import Refused

PAIR = ["--m", "16", "--d-in", "256", "--d-hidden", "512", "--d-out", "256"]
GEMMS = ["--first", "64,64,64", "--second", "64,64,64"]
BIG = ["--m", "512", "--d-in", "12288", "--d-hidden", "6144", "--d-out", "12288", "--trials", "100000"]


@pytest.mark.slow
def test_a_job_is_submitted_watched_and_its_result_printed(run: Run) -> None:
    result = run("submit", *GEMMS, "--trials", "8", "--seconds", "60", "--seed", "3", "--watch")
    assert result.exit_code == ExitCode.OK
    assert "Verdict: " in result.stdout
    assert "(simulated)" in result.stdout
    for kind in ("library", "two launches", "fused"):
        assert f"{kind} (simulated)" in result.stdout
    assert "succeeded: 8/8 trials" in result.stderr
    assert "succeeded" not in result.stdout


@pytest.mark.slow
def test_submit_prints_the_id_alone_on_stdout(run: Run, client: Client, job_id: str) -> None:
    """Job `job_id` was submitted before, perhaps together with others for its problem, so its id is printed again."""
    before = {job["id"] for job in client.jobs()}
    result = run("submit", *PAIR, "--reuse")
    found = result.stdout.removesuffix("\n")
    assert result.exit_code == ExitCode.OK
    assert found in before >= {job_id}
    assert client.job(found)["pair"].items() >= SMALL_PAIR.items()
    assert f"/ui/jobs/{found}" in result.stderr


def test_every_option_of_submit_reaches_the_server(run: Run) -> None:
    options = (
        "--activation gelu --bias --gated --residual --row-scale --dtype bf16 --target simulated:h200 --l2 warm "
        "--regime sustained --energy-within 3 --torch-compile --trials 3 --patience 2 --priors none"
    )
    result = run("submit", *PAIR, *options.split(), "--seconds", "7", "--seed", "5", "--idempotency-key", "k", "--json")
    job = json.loads(result.stdout)
    assert job["pair"] == {
        **SMALL_PAIR,
        "activation": "gelu",
        **dict.fromkeys(("bias", "gated", "residual", "row_scale"), True),
        "dtype": "bf16",
    }
    asked = {"l2": "warm", "regime": "sustained", "energy_within_percent": 3.0, "torch_compile": True}
    assert job["objective"].items() >= asked.items()
    assert (job["budget"], job["seed"]) == ({"trials": 3, "seconds": 7, "patience": 2}, 5)
    assert job["priors"] == "none"
    other = run("submit", *PAIR, "--seed", "6", "--idempotency-key", "k")
    assert other.exit_code == ExitCode.REFUSED
    assert "Idempotency-Key" in other.stderr


def test_a_preset_and_a_file_of_ops_are_submitted(run: Run, tmp_path: Path) -> None:
    """Each job is cancelled at once; the test checks the submitted request only."""
    path = tmp_path / "chain.json"
    ops = [{"name": "a", "source": "x", "n": 64, "k": 32}, {"name": "b", "source": "a", "n": 32, "k": 64}]
    path.write_text(json.dumps({"m": 16, "ops": ops}))
    preset = ["--preset", "decoder-block", "--model", "llama3-70b", "--m", "16", "--tp", "8", "--run", "mlp"]
    attention = ["--sequences", "4", "--max-length", "512", "--dtype", "bf16"]
    of_model = ["--preset", "decoder-attention", "--model", "llama3-8b", "--no-projection", *attention]
    of_layer = ["--preset", "decoder-layer", "--model", "llama3-8b", *attention]
    of_rank = ["--preset", "decoder-layer", "--model", "llama3-70b", "--tp", "8", "--run", "qkv_attention", *attention]
    by_sizes = ["--heads", "8", "--kv-heads", "2", "--head-dim", "64", "--d-out", "512", *attention]
    for options, names in (
        ([*preset, "--trials", "1000"], ["gate_up", "down"]),
        (["--chain", str(path)], ["a", "b"]),
        (["--trials", "9", "chain", str(path), "--project", "p"], ["a", "b"]),
        (["layer", "--model", "llama3-8b", *attention], ["attention", "o_proj", "gate_up", "down", "qkv"]),
        (of_model, ["attention"]),
        (of_layer, ["attention", "o_proj", "gate_up", "down", "qkv"]),
        (of_rank, ["qkv", "attention", "o_proj"]),
        (by_sizes, ["attention", "o_proj"]),
    ):
        job = json.loads(run("submit", *options, "--json").stdout)
        run("cancel", job["id"])
        assert job["pair"]["kind"] == "chain"
        assert [op["name"] for op in job["pair"]["ops"]] == names


@pytest.mark.parametrize("case", BAD_CHAINS | BAD_FORMS)
def test_a_chain_that_is_none_is_refused_by_name_on_the_command_line_and_in_python(
    run: Run, client: Client, tmp_path: Path, case: str
) -> None:
    bad, path = (BAD_CHAINS | BAD_FORMS)[case], tmp_path / "chain.json"
    path.write_text(json.dumps(bad.pair))
    result = run("submit", "--chain", str(path))
    assert result.exit_code == ExitCode.REFUSED
    with pytest.raises(Refused) as refusal:
        client.submit({"pair": bad.pair})
    for said in (" ".join(result.stderr.split()), str(refusal.value)):
        assert all(words in said for words in (bad.field, bad.problem, bad.remedy)), said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "decoder-block", "--m", "16"], "also needs --model"),
        (
            ["--preset", "decoder-block", "--m", "16", "--model", "llama3-8b", "--d-in", "4"],
            "--d-in: not allowed for decoder-b",
        ),
        (["--tp", "2", *PAIR], "--tp: not allowed for ffn"),
        (["--heads", "8", "--sequences", "4"], "attention also needs --max-length, --kv-heads, --head-dim"),
        (
            ["--preset", "decoder-attention", "--model", "llama3-8b", "--m", "4"],
            "also needs --sequences, --max-length; --m: not allowed for decoder-attention",
        ),
        (["--tp", "4", *PAIR], "--tp: not allowed for ffn"),
        (
            ["--gated"],
            ("describe a pair with --m, --d-in, --d-hidden, --d-out, or with the options of another kind: ffn, indep"),
        ),
        (
            ["--model", "llama3-8b", "--sequences", "4", "--max-length", "512"],
            "these options fit decoder-attention and decoder-layer: choose one with --kind",
        ),
        (["--m", "16", "ffn", *PAIR], "--m is given twice, with 16 and 16"),
        (["--dtype", "bf16", "ffn", *PAIR], "--dtype: put the options of the pair after its kind"),
        (["ffn", "--m", "16"], "Missing option '--d-in'"),
        (["ffn", *PAIR, "--tp", "2"], "--tp"),
        (["layers"], "No such command 'layers'"),
        (["--chain", "no-such.json"], "no-such.json: cannot be read"),
        (["--chain", "pyproject.toml"], "is not valid JSON"),
        (["--chain", "pyproject.toml", "--m", "3"], "--m: not allowed with --chain"),
    ],
)
def test_options_of_a_chain_that_do_not_go_together_are_refused(run: Run, options: list[str], words: str) -> None:
    result = run("submit", *options)
    assert result.exit_code == ExitCode.USAGE
    assert words in " ".join(result.stderr.split())


def test_status_tells_where_a_job_is_and_how_well_its_trials_were_forecast(run: Run, job_id: str) -> None:
    first, second, third, fourth, *_ = run("status", job_id).stdout.splitlines()
    assert first.startswith(f"{job_id}: ffn fp16 M=16")
    assert second.startswith("succeeded: 12/12 trials; best of ours ")
    assert third.startswith("forecast: too few: ")
    assert third.endswith("(simulated)")
    assert fourth == "priors: nearest"
    assert json.loads(run("status", job_id, "--json").stdout)["forecast"]["rank_correlation"] is None


def test_jobs_and_trials_are_listed_as_tables_and_as_json(run: Run, job_id: str) -> None:
    for arguments, count in ((["jobs"], None), (["trials", job_id], 12)):
        table = run(*arguments).stdout
        assert "simulated" in table
        documents = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
        assert all(document["simulated"] for document in documents)
        assert count is None or len(documents) == count
    measured = run("trials", job_id, "--outcome", "measured", "--plan-kind", "library", "--sort", "time", "--json")
    assert [json.loads(line)["number"] for line in measured.stdout.splitlines()] == [0]


def test_best_prints_the_result_of_a_job_or_of_a_pair(run: Run, job_id: str) -> None:
    def has_energies() -> bool:
        return all(row["energy_mj"] for row in json.loads(run("best", job_id, "--json").stdout)["finals"])

    # Inspections behind the job's end add the energies.
    wait_until(has_energies, pause_s=0.15)
    by_job, by_pair = run("best", job_id, "--json"), run("best", *PAIR, "--json")
    assert by_job.exit_code == by_pair.exit_code == ExitCode.OK
    assert json.loads(by_job.stdout) == json.loads(by_pair.stdout)
    assert "Verdict: " in run("best", job_id).stdout


def test_watch_of_a_finished_job_prints_its_result_at_once(run: Run, job_id: str) -> None:
    result = run("watch", job_id, "--json")
    assert json.loads(result.stdout)["job_id"] == job_id


def test_a_cancelled_job_is_a_failed_one_and_a_slow_one_a_timeout(run: Run) -> None:
    job_id = run("submit", *BIG).stdout.strip()
    assert run("watch", job_id, "--timeout", "0.3").exit_code == ExitCode.TIMEOUT
    assert run("best", job_id).exit_code == ExitCode.NO_RESULT
    assert run("cancel", job_id).stdout == "cancelled\n"
    for arguments in (["watch", job_id], ["best", job_id], ["fetch", "best", "--job", job_id]):
        result = run(*arguments)
        assert result.exit_code == ExitCode.JOB_FAILED
        assert "cancelled" in result.stderr
        assert "Verdict" not in result.stdout


def test_what_is_not_there_is_no_result(run: Run, job_id: str) -> None:
    for arguments in (["watch", "job-000000000000"], ["trials", "../jobs"], ["best", *PAIR, "--target", "h200"]):
        assert run(*arguments).exit_code == ExitCode.NO_RESULT
    assert ": it is a batch; GET /batches/{batch_id}/jobs lists its jobs" in run("trials", "batch-000000000000").stderr
    assert f"there is no batch '{job_id}': it is a job" in run("fetch", "best", "--batch", job_id).stderr


def test_a_server_that_is_not_there_is_unreachable(run: Run) -> None:
    for url in ("http://127.0.0.1:1", "http://[", "nonsense"):
        result = run("jobs", url=url)
        assert result.exit_code == ExitCode.UNREACHABLE, url
        assert result.stdout == ""


def test_what_the_server_refuses_says_why(run: Run) -> None:
    result = run("submit", *PAIR, "--target", "h9000")
    assert result.exit_code == ExitCode.REFUSED
    assert "there is no GPU called 'h9000'" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "--m", "16"],
        ["submit", *GEMMS, "--bias"],
        ["submit", *GEMMS, "--m", "3"],
        ["submit", "--first", "1,2", "--second", "1,2,3"],
        ["submit", "--first", "1,2,0", "--second", "1,2,3"],
        ["submit", *PAIR, "--dtype", "fp8"],
        ["submit", *PAIR, "--trials", "0"],
        ["fetch", "best", "--format", "gif"],
        ["fly"],
    ],
)
def test_a_wrong_command_line_is_a_usage_error(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert "Usage:" in result.stderr


def test_the_address_comes_from_the_environment(
    server: Server, job_id: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    from click.testing import CliRunner

    monkeypatch.setenv("TUNER_URL", server.url)
    found = [CliRunner().invoke(main, ["jobs", "--json"]), run("jobs", "--json")]
    one, other = ([json.loads(line)["id"] for line in result.stdout.splitlines()] for result in found)
    assert one == other
    assert job_id in one


def test_every_exit_code_and_command_is_documented() -> None:
    page = (ROOT / "docs/client.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(str(code.value), code.name, code.meaning) for code in ExitCode]
    for name in [name for name in COMMANDS if name != "fetch"] + ["fetch best"]:
        assert f"| `{name}" in page
    fetch = main.get_command(click.Context(main), "fetch")
    assert isinstance(fetch, click.Group)
    fetch_best = fetch.commands["best"]
    for option in fetch_best.params:
        if option.name not in ("m", "d_in", "d_hidden", "d_out", "output"):
            assert option.opts[0] in page, option.name


def test_samples_are_printed_as_json(run: Run, job_id: str) -> None:
    found = json.loads(run("samples", job_id, "0").stdout)
    assert (found["job_id"], found["number"], found["simulated"]) == (job_id, 0, True)
    assert all(one["library_us"] is None and one["kept"] for one in found["rounds"])
    assert run("samples", job_id, "999").exit_code == ExitCode.NO_RESULT
