"""Fetching a result: it is verified, complete, not rewritten if unchanged, and weaker matches are reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.service.client.conftest import Run
from tests.service.client.test_cli import PAIR
from tests.support.attentions import alone
from tests.support.repository import ROOT
from tests.support.serving import Server
from tuner.client import Client, ExitCode, open_artifact
from tuner.packs.signing import SigningKey, signing_key

MAKE_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
#: The library is faster at this small pair.
FETCH = ["fetch", "best", "--even-if-slower"]
TARGET = ["--target", "simulated:h200"]
NEAR = ["--m", "17", *PAIR[2:], *TARGET, "--match", "nearest"]


def as_kind(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Changes the result so that the fetched kernel has this plan kind."""
    fetched = Client.artifact

    def changed(*asked: Any) -> Any:
        artifact = fetched(*asked)
        return replace(artifact, manifest={**artifact.manifest, "plan_kind": kind})

    monkeypatch.setattr(Client, "artifact", changed)


def test_every_format_is_a_file_of_the_same_artifact(run: Run, client: Client, job_id: str, tmp_path: Path) -> None:
    link = client.best(job_id)["artifact"]
    for format in ("zip", "manifest", "cu", "json"):
        assert run(*FETCH, "--job", job_id, "--format", format, "-o", str(tmp_path / format)).exit_code == 0
    artifact = open_artifact((tmp_path / "zip").read_bytes(), link["digest"])
    assert (tmp_path / "cu").read_bytes() == artifact.files["kernel.cu"]
    assert json.loads((tmp_path / "manifest").read_text()) == artifact.manifest
    assert json.loads((tmp_path / "json").read_text())["best"] == client.best(job_id)


def test_without_a_path_the_bytes_alone_go_to_stdout(run: Run, client: Client, job_id: str) -> None:
    result = run(*FETCH, *PAIR, *TARGET)
    assert open_artifact(result.stdout_bytes, client.best(job_id)["artifact"]["digest"]).simulated
    assert "the result is simulated" in result.stderr


def test_a_kernel_that_the_pinned_key_has_not_signed_is_refused(
    run: Run, job_id: str, server: Server, tmp_path: Path
) -> None:
    path, key = tmp_path / "kernel.zip", signing_key(server.log.with_suffix("")).public
    fetching = [*FETCH, "--job", job_id, "-o", str(path), "--key"]
    stranger = SigningKey(private=bytes(32)).public
    refused = run(*fetching, stranger)
    assert (refused.exit_code, path.exists()) == (ExitCode.REFUSED, False)
    assert f"it is signed by {key}, but {stranger}" in refused.stderr
    assert run(*fetching, "abc").exit_code == ExitCode.USAGE
    assert run(*fetching, key).exit_code == ExitCode.OK
    assert path.exists()


@pytest.mark.parametrize("format", ["json", "manifest", "cu", "zip"])
def test_every_format_is_refused_where_another_key_is_pinned(
    run: Run, job_id: str, server: Server, tmp_path: Path, format: str
) -> None:
    path, key = tmp_path / "result", signing_key(server.log.with_suffix("")).public
    fetching = [*FETCH, "--job", job_id, "--format", format, "-o", str(path), "--key"]
    refused = run(*fetching, SigningKey(private=bytes(32)).public)
    assert (refused.exit_code, path.exists()) == (ExitCode.REFUSED, False)
    assert run(*fetching, key).exit_code == ExitCode.OK
    assert path.exists()


def test_an_unchanged_file_is_left_alone(run: Run, job_id: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kernel.zip"
    arguments = [*FETCH, "--job", job_id, "-o", str(path)]
    assert "written" in run(*arguments).stderr
    os.utime(path, (1, 1))
    assert "is unchanged" in run(*arguments).stderr
    assert path.stat().st_mtime == 1
    path.write_bytes(b"something else")
    assert "written" in run(*arguments).stderr
    assert [file.name for file in path.parent.iterdir()] == ["kernel.zip"]


def test_a_simulated_result_has_no_cubin_and_that_has_its_own_exit_code(run: Run, job_id: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    result = run(*FETCH, "--job", job_id, "--format", "cubin", "-o", str(path))
    assert result.exit_code == ExitCode.SIMULATED
    assert not path.exists()


@pytest.mark.parametrize("more", [[], ["--format", "json"], ["--m", "17", "--accept-nearest"]])
def test_a_simulated_result_is_only_written_if_its_target_or_its_job_was_named(
    run: Run, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    path, asked = tmp_path / "result", [*FETCH, *(PAIR[2:] if "--m" in more else PAIR), *more]
    refused = run(*asked, "-o", str(path))
    assert (refused.exit_code, path.exists()) == (ExitCode.SIMULATED, False)
    assert "nothing was written without --target simulated:h200" in refused.stderr
    assert run(*asked, *TARGET, "-o", str(path)).exit_code == ExitCode.OK
    settings = tmp_path / "config.toml"
    settings.write_text('[fetch.best]\ntarget = "simulated:h200"\n')
    monkeypatch.setenv("TUNER_CONFIG", str(settings))
    assert run(*asked, "-o", str(path)).exit_code == ExitCode.OK, "named in the configuration file"


def test_a_weaker_match_writes_nothing_unless_it_is_accepted(run: Run, job_id: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    refused = run(*FETCH, *NEAR, "--format", "cu", "-o", str(path))
    assert (refused.exit_code, path.exists()) == (ExitCode.WEAKER_MATCH, False)
    assert "M=16" in refused.stderr
    written = run(*FETCH, *NEAR, "--format", "cu", "-o", str(path), "--accept-nearest")
    assert (written.exit_code, path.exists()) == (ExitCode.OK, True)
    assert "M=16" in written.stderr


def test_who_accepts_the_nearest_match_asks_for_it_unless_another_one_is_named(
    run: Run, job_id: str, tmp_path: Path
) -> None:
    path, near = tmp_path / "kernel.cu", NEAR[: NEAR.index("--match")]
    asked = [*FETCH, *near, "--format", "cu", "-o", str(path), "--accept-nearest"]
    assert run(*asked, "--match", "exact").exit_code == ExitCode.NO_RESULT
    assert not path.exists()
    assert run(*asked).exit_code == ExitCode.OK
    assert path.exists()


# In CI, a weaker match writes nothing in another test.
@pytest.mark.soak
def test_make_after_a_weaker_match_fails_twice(server: Server, job_id: str, tmp_path: Path) -> None:
    def make() -> int:
        return subprocess.run(["make", "-s", "program"], cwd=tmp_path, env=MAKE_ENVIRONMENT).returncode

    def recipe(m: int, *more: str) -> None:
        pair = " ".join(["--m", str(m), *PAIR[2:], *TARGET, "--match", "nearest", *more])
        client = f"{sys.executable} -m tuner.client.cli --url {server.url}"
        rules = f"program: kernel.cu\n\tcp $< $@\nkernel.cu:\n\t{client} {' '.join(FETCH)} {pair} --format cu -o $@\n"
        (tmp_path / "Makefile").write_text(rules)

    recipe(17)
    assert [make(), make()] == [2, 2]
    assert not (tmp_path / "program").exists()
    recipe(16)
    assert make() == 0


def test_a_shape_beyond_the_limit_is_no_result_and_the_limit_can_be_set(run: Run, job_id: str) -> None:
    far = ["--m", "64", *PAIR[2:], *TARGET, "--match", "nearest"]
    refused = run(*FETCH, *far, "--accept-nearest")
    assert refused.exit_code == ExitCode.NO_RESULT
    assert "distance 4, and the limit is 2 (use --max-distance 4 to get it" in refused.stderr
    best = ["best"], "--match nearest", ExitCode.WEAKER_MATCH  # prints it anyway
    fetch = [*FETCH, "--elsewhere"], "--match nearest --accept-nearest", ExitCode.OK
    for command, match, code in (best, fetch):
        refused = run(*command, "--m", "64", *PAIR[2:], *TARGET)
        assert f"(use {match} and --max-distance 4 to get it" in refused.stderr
        taken = run(*command, "--m", "64", *PAIR[2:], *TARGET, *match.split(), "--max-distance", "4")
        assert (taken.exit_code, taken.stdout != "") == (code, True), "the message names the options that fetch it"
    assert run(*FETCH, *far, "--accept-nearest", "--max-distance", "4").exit_code == ExitCode.OK


def test_a_result_for_a_warm_l2_is_not_fetched_for_a_cold_one(run: Run, job_id: str) -> None:
    result = run(*FETCH, *PAIR, "--l2", "warm")
    assert (result.exit_code, result.stdout) == (ExitCode.NO_RESULT, "")
    assert "measured with a cold L2, not a warm one" in result.stderr


RECIPE = {
    "cublaslt_version": 130100,
    "beside": False,
    "calls": [
        {"op": "up", "rows": 512, "columns": 16, "k": 256, "data_type": "CUDA_R_16F", "beta": 0,
         "epilogue": "CUBLASLT_EPILOGUE_DEFAULT", "algorithm": {"id": 66, "tile_id": 20}, "heuristic_index": 3,
         "workspace_bytes": 0, "afterwards": "apply silu"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("verdict", ["do not fuse", "tie"])
def test_where_the_library_is_the_answer_nothing_is_written_and_its_algorithm_is_named(
    run: Run, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    path, measured = tmp_path / "kernel.zip", Client.best
    monkeypatch.setattr(
        Client, "best", lambda *_: {**measured(*_), "winner": "library", "verdict": verdict, "library": RECIPE}
    )
    refused = run("fetch", "best", "--job", job_id, "-o", str(path))
    assert (refused.exit_code, path.exists(), refused.stdout) == (ExitCode.LIBRARY_WINS, False, "")
    assert f"{job_id} recommends library (simulated)" in refused.stderr
    assert "cuBLASLt 130100\n  up: D[512, 16] = A^T B, k 256, CUDA_R_16F" in refused.stderr
    assert "algorithm id 66, tile_id 20; workspace 0 B; afterwards apply silu" in refused.stderr
    written = run(*FETCH, "--job", job_id, "-o", str(path))
    assert (written.exit_code, path.exists()) == (ExitCode.OK, True)
    assert "recommends library" in written.stderr


@pytest.mark.parametrize("calls", [RECIPE["calls"], []], ids=["computed, maximum over the", "alone"])
def test_where_the_library_is_the_answer_its_attention_is_named(
    run: Run, job_id: str, monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    measured, attention = Client.best, "PyTorch 2.11 scaled_dot_product_attention by cudnn"
    library = {**RECIPE, "calls": calls, "attention": attention}
    monkeypatch.setattr(Client, "best", lambda *_: {**measured(*_), "winner": "library", "library": library})
    refused = run("fetch", "best", "--job", job_id)
    assert refused.exit_code == ExitCode.LIBRARY_WINS
    assert f"recommends library (simulated)\n{attention}\n" in refused.stderr
    assert ("cuBLASLt 130100" in refused.stderr) == bool(calls)


def test_where_an_attention_has_a_launch_of_its_own_several_launches_need_no_option(
    run: Run, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for every plan kind: callers of an attention or layer kernel do not rely on a single launch."""
    path, measured = tmp_path / "kernel.zip", Client.best

    def best_of_a_layer(*asked: Any) -> dict[str, Any]:
        best = measured(*asked)
        (first, row, *others), attentions = best["finals"], alone().to_json()["attentions"]
        schedule = {**row["candidate"]["schedule"], "attentions": attentions}
        row = {**row, "candidate": {**row["candidate"], "schedule": schedule}}
        finals = [first, row, *others]
        return {**best, "winner": "n_launches_pdl", "verdict": "do not fuse", "winner_row": 1, "finals": finals}

    monkeypatch.setattr(Client, "best", best_of_a_layer)
    as_kind(monkeypatch, "n_launches_pdl")
    written = run("fetch", "best", "--job", job_id, "-o", str(path))
    assert (written.exit_code, path.exists()) == (ExitCode.OK, True), written.stderr
    assert "recommends n launches pdl" in written.stderr


@pytest.mark.parametrize("verdict", ["do not fuse", "tie"])
@pytest.mark.parametrize("flag", ["--accept-unfused", "--even-if-slower"])
def test_where_several_launches_are_the_answer_nothing_is_written_unless_they_are_accepted(
    run: Run, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, flag: str
) -> None:
    path, best = tmp_path / "kernel.zip", Client.best
    kind = "two_launches_pdl"
    monkeypatch.setattr(Client, "best", lambda *_: {**best(*_), "winner": kind, "verdict": verdict, "winner_row": 1})
    refused = run("fetch", "best", "--job", job_id, "-o", str(path))
    assert (refused.exit_code, path.exists(), refused.stdout) == (ExitCode.UNFUSED_WINS, False, "")
    assert "recommends two launches pdl, 0." in refused.stderr
    as_kind(monkeypatch, kind)
    written = run("fetch", "best", "--job", job_id, "-o", str(path), flag)
    assert (written.exit_code, path.exists()) == (ExitCode.OK, True)
    assert "recommends two launches pdl" in written.stderr


@pytest.mark.parametrize("verdict", ["fused wins", "tie"])
def test_where_a_fused_launch_is_the_answer_it_is_written(
    run: Run, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    path, best = tmp_path / "kernel.zip", Client.best
    monkeypatch.setattr(Client, "best", lambda *_: {**best(*_), "winner": "fused", "verdict": verdict})
    as_kind(monkeypatch, "fused")
    assert run("fetch", "best", "--job", job_id, "-o", str(path)).exit_code == ExitCode.OK
    assert path.exists()


def test_another_version_of_the_kernels_is_a_weaker_match(run: Run, job_id: str) -> None:
    asked = [*FETCH, "--job", job_id, "--format", "json", "--kernel-version", "0" * 16]
    assert run(*asked).exit_code == ExitCode.WEAKER_MATCH
    result = run(*asked, "--accept-nearest")
    assert result.exit_code == ExitCode.OK
    document = json.loads(result.stdout)
    assert document["match"] == "nearest"
    assert "kernel version" in document["differences"][0]


def test_no_simulated_result_is_fetched_for_a_real_gpu(run: Run, job_id: str) -> None:
    assert run(*FETCH, *PAIR, "--target", "h200", "--match", "any").exit_code == ExitCode.NO_RESULT


def test_a_path_that_cannot_be_written_is_a_usage_error(run: Run, job_id: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(*FETCH, "--job", job_id, "-o", str(tmp_path / "file" / "kernel.zip"))
    assert result.exit_code == ExitCode.USAGE


def test_a_job_and_a_pair_that_may_be_another_ones_are_not_given_together(run: Run, tmp_path: Path) -> None:
    both = ["--job", "job-000000000000", "--m", "999", "--target", "h200", "-o", str(tmp_path / "x.zip")]
    result = run("fetch", "best", *both)
    assert (result.exit_code, "leave out --m, --target" in result.stderr) == (ExitCode.USAGE, True)
