"""Fetching a result: checked, whole, left alone where nothing changed, honest about weaker matches."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.service.client.conftest import Run
from tests.service.client.test_cli import PAIR
from tuner.client import Client, ExitCode, open_artifact

NEAR = ["--m", "17", *PAIR[2:], "--match", "nearest"]


def test_every_format_is_a_file_of_the_same_artifact(run: Run, client: Client, job_id: str, tmp_path: Path) -> None:
    link = client.best(job_id)["artifact"]
    for format in ("zip", "manifest", "cu", "json"):
        assert run("fetch", "best", "--job", job_id, "--format", format, "-o", str(tmp_path / format)).exit_code == 0
    artifact = open_artifact((tmp_path / "zip").read_bytes(), link["digest"])
    assert (tmp_path / "cu").read_bytes() == artifact.files["kernel.cu"]
    assert json.loads((tmp_path / "manifest").read_text()) == artifact.manifest
    assert json.loads((tmp_path / "json").read_text())["best"] == client.best(job_id)


def test_without_a_path_the_bytes_alone_go_to_stdout(run: Run, client: Client, job_id: str) -> None:
    result = run("fetch", "best", *PAIR, "--target", "simulated:h200")
    assert open_artifact(result.stdout_bytes, client.best(job_id)["artifact"]["digest"]).simulated
    assert "the result is simulated" in result.stderr


def test_an_unchanged_file_is_left_alone(run: Run, job_id: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kernel.zip"
    arguments = ["fetch", "best", "--job", job_id, "-o", str(path)]
    assert "written" in run(*arguments).stderr
    os.utime(path, (1, 1))
    assert "is unchanged" in run(*arguments).stderr
    assert path.stat().st_mtime == 1
    path.write_bytes(b"something else")
    assert "written" in run(*arguments).stderr
    assert [file.name for file in path.parent.iterdir()] == ["kernel.zip"]


def test_a_simulated_result_has_no_cubin_and_that_has_its_own_exit_code(run: Run, job_id: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    result = run("fetch", "best", "--job", job_id, "--format", "cubin", "-o", str(path))
    assert result.exit_code == ExitCode.SIMULATED
    assert not path.exists()


def test_a_weaker_match_is_written_and_reported_with_strict_only_reported(
    run: Run, job_id: str, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.cu"
    strict = run("fetch", "best", *NEAR, "--format", "cu", "--strict", "-o", str(path))
    assert (strict.exit_code, path.exists()) == (ExitCode.WEAKER_MATCH, False)
    written = run("fetch", "best", *NEAR, "--format", "cu", "-o", str(path))
    assert (written.exit_code, path.exists()) == (ExitCode.WEAKER_MATCH, True)
    assert "M=16" in written.stderr


def test_another_version_of_the_kernels_is_a_weaker_match(run: Run, job_id: str) -> None:
    result = run("fetch", "best", "--job", job_id, "--format", "json", "--kernel-version", "0" * 16)
    assert result.exit_code == ExitCode.WEAKER_MATCH
    document = json.loads(result.stdout)
    assert document["match"] == "nearest"
    assert "kernel version" in document["differences"][0]


def test_no_simulated_result_is_fetched_for_a_real_gpu(run: Run, job_id: str) -> None:
    assert run("fetch", "best", *PAIR, "--target", "h200", "--match", "any").exit_code == ExitCode.NO_RESULT


def test_a_path_that_cannot_be_written_is_a_usage_error(run: Run, job_id: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("fetch", "best", "--job", job_id, "-o", str(tmp_path / "file" / "kernel.zip"))
    assert result.exit_code == ExitCode.USAGE
