"""Batches on the command line: submitted as a list of row counts, followed, fetched, ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.service.client.conftest import Run
from tests.support.waiting import wait_until
from tuner.client import Client, ExitCode
from tuner.packs.read import read_pack

PAIR = ["--d-in", "4096", "--d-hidden", "1024", "--d-out", "4096", "--trials", "5"]


@pytest.fixture(scope="module")
def batch_id(client: Client) -> str:
    """The id of a batch of two jobs."""
    shape = {"d_in": 256, "d_hidden": 512, "d_out": 256, "m": [8, 16]}
    return str(client.submit_batch({"shapes": [shape], "budget": {"trials": 5}, "project": "client"})["id"])


@pytest.mark.slow
def test_a_list_of_rows_makes_a_batch_that_is_watched_to_its_table(run: Run, client: Client, batch_id: str) -> None:
    watched = run("watch", batch_id)
    assert watched.exit_code == 0, watched.stderr
    assert "succeeded: " in watched.stderr
    assert "Up to ffn fp16 M=16 256 -> 512 -> 256 on " in watched.stdout
    assert "2 succeeded" in run("status", batch_id).stdout
    assert batch_id in run("batches").stdout
    assert {one["m"] for one in client.batch_jobs(batch_id)} == {8, 16}
    assert json.loads(run("best", batch_id, "--json").stdout)["ladders"][0]["rungs"][-1]["m_hi"] == 16


def test_its_answers_and_kernels_are_fetched_into_a_folder_or_the_library_is_named(
    run: Run, batch_id: str, tmp_path: Path
) -> None:
    assert run("watch", batch_id).exit_code == 0
    found = run("fetch", "best", "--batch", batch_id, "--format", "json", "-o", str(tmp_path / "best.json"))
    assert found.exit_code == 0, found.stderr
    best = json.loads((tmp_path / "best.json").read_text())
    fetched = run("fetch", "best", "--batch", batch_id, "-o", str(tmp_path / "kernels"))
    kernels = [kernel for ladder in best["ladders"] for kernel in ladder["kernels"]]
    assert fetched.exit_code == (0 if kernels else ExitCode.LIBRARY_WINS)
    names = {path.name for path in (tmp_path / "kernels").glob("*")}
    assert names == ({"ladders.json", *(f"ladder0-kernel{i}.zip" for i in range(len(kernels)))} if kernels else set())
    assert run("fetch", "best", "--batch", batch_id, "--format", "cu").exit_code == ExitCode.USAGE
    refused = run("fetch", "best", "--batch", batch_id, "-o", str(tmp_path / "best.json"))
    assert (refused.exit_code, "is a file; pass a folder name to -o" in refused.stderr) == (ExitCode.USAGE, True)
    for ids in ([batch_id], ["--job", batch_id]):
        packed = run("pack", *ids, "-o", str(tmp_path / "model.tunerpack"))
        assert packed.exit_code == 0, packed.stderr
    rungs = read_pack((tmp_path / "model.tunerpack").read_bytes()).entries[0].rungs
    assert {8, 16} <= {rung.m_hi for rung in rungs}
    nothing = run("retry", batch_id)
    assert (nothing.exit_code, "has no job that failed or was cancelled" in nothing.stderr) == (ExitCode.REFUSED, True)


def test_a_batch_is_submitted_by_its_rows_and_ended(run: Run, client: Client) -> None:
    made = run("submit", "--m", "1,2..8", *PAIR)
    assert made.exit_code == 0, made.stderr
    batch_id = made.stdout.strip()
    assert batch_id.startswith("batch-")
    assert client.batch(batch_id)["num_jobs"] == 4
    kept = run("delete", batch_id)
    assert (kept.exit_code, "cancel it first: nothing was deleted" in kept.stderr) == (ExitCode.REFUSED, True)
    assert run("cancel", batch_id).stdout.strip() == "cancelled"
    assert run("best", batch_id).exit_code == ExitCode.JOB_FAILED
    again = run("retry", batch_id)
    assert again.exit_code == 0, again.stderr
    assert {client.job(one)["pair"]["m"] for one in again.stdout.split()} == {1, 2, 4, 8}
    assert run("cancel", *again.stdout.split()).exit_code == 0
    gone = run("delete", batch_id)
    assert (gone.exit_code, gone.stdout) == (0, f"{batch_id} deleted\n"), gone.stderr
    wait_until(lambda: run("status", batch_id).exit_code == ExitCode.NO_RESULT)


def test_a_preset_is_submitted_with_several_rows_as_one_ladder(run: Run, client: Client) -> None:
    preset = ["--preset", "decoder-block", "--model", "llama3-70b", "--tp", "8", "--run", "mlp"]
    made = run("submit", "--m", "4,16", *preset, "--trials", "5")
    assert made.exit_code == 0, made.stderr
    batch = client.batch(made.stdout.strip())
    assert (batch["num_jobs"], batch["num_ladders"]) == (2, 1)
    assert {one["m"] for one in client.batch_jobs(batch["id"])} == {4, 16}
    assert run("cancel", batch["id"]).stdout.strip() == "cancelled"


def test_one_result_is_of_one_number_of_rows(run: Run) -> None:
    result = run("best", "--m", "1,2", *PAIR[:-2])
    assert result.exit_code == ExitCode.USAGE
    assert "one number of rows" in result.stderr
    assert run("status", "batch-0").exit_code == ExitCode.NO_RESULT
