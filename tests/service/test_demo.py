"""The demo shows a result on a fresh machine, and leaves no server behind however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner

from tests.support.lanes import soaked
from tests.support.native.example import COMPILERS, built_example, run_command
from tests.support.native.recorder import compile_recorder
from tests.support.repository import ROOT
from tuner import demo as demo_module
from tuner.client.errors import Unreachable
from tuner.store.engine.directory import DirectoryLock
from tuner.terminal import CannotPrint


def start(
    tmp_path: Path, *options: str, latency_s: float = 0.0, stdout: IO[str] | int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tuner.demo", "--data", "data", "--output", "best", "--gpu", "simulated:h200"]
    return subprocess.Popen(
        [*command, *options],
        cwd=tmp_path,
        env=os.environ | {"TUNER_SIMULATED_LATENCY_S": str(latency_s)} | variables,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("builds_the_example", [False, *soaked(True)])
def test_it_ends_with_a_table_a_verdict_and_the_kernel_and_says_simulated(
    tmp_path: Path, builds_the_example: bool
) -> None:
    """The demo also works on an ASCII terminal. In CI, tests/unit/runtime/test_cpp.py builds the example in C++."""
    (tmp_path / "best").mkdir()
    (tmp_path / "best/manifest.json").write_text('{"files": {"kernel.cubin": {}}}')
    (tmp_path / "best/kernel.cubin").touch()
    with start(tmp_path, "--trials", "16", PYTHONIOENCODING="ascii") as demo:
        output, errors = demo.communicate(timeout=200)
    assert demo.returncode == 0, errors
    for expected in (
        "No GPU is used",
        "16/16 trials",
        "library (simulated)",
        "fused (simulated)",
        "Verdict: ",
        "make serve",
    ):
        assert expected in output
    assert output.isascii()
    assert "us, " in output, "microseconds"
    manifest = json.loads((tmp_path / "best/manifest.json").read_text())
    assert manifest["simulated"] is True
    assert not (tmp_path / "best/kernel.cubin").exists(), "left over from another artifact"
    assert "tuner_chain" in (tmp_path / "best/kernel.cu").read_text()
    DirectoryLock(tmp_path / "data").release()  # refused if a server were still running
    for name, words in (("best", "it was simulated"), ("data", "has no manifest.json")):
        example = [sys.executable, str(ROOT / "examples" / "run_artifact.py"), name]
        run = subprocess.run(example, cwd=tmp_path, capture_output=True, text=True)
        assert (run.returncode, words in run.stderr) == (1, True), run.stderr
    compiler = next(filter(shutil.which, COMPILERS), None)
    if builds_the_example and shutil.which("cmake") is not None and compiler is not None:
        program = str(built_example(compiler, tmp_path / compiler, PACK=tmp_path / "best/model.tunerpack"))
        driver_says = {"nowhere": "the NVIDIA driver cannot be loaded"}
        driver_says[str(compile_recorder(tmp_path))] = "the pack is simulated"
        for driver, words in driver_says.items():
            ran = run_command(program, "16", TUNER_LIBCUDA=driver)
            assert (ran.returncode, ran.stdout) == (1, "")
            assert words in ran.stderr


def test_the_example_says_how_it_is_called() -> None:
    example = [sys.executable, str(ROOT / "examples" / "run_artifact.py")]
    ran = subprocess.run(example, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (1, "pass the zip of an artifact, or the folder of its files\n")


# In CI, another test ends a demo early, and tests/service/test_ending.py servers by signals.
@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_server(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, latency_s=10.0) as demo:
        assert demo.stdout is not None
        while "searching" not in demo.stdout.readline():
            assert demo.poll() is None
        demo.send_signal(number)
        begin = time.monotonic()
        _, errors = demo.communicate(timeout=120)
    assert demo.returncode not in (0, None)
    assert "Traceback" not in errors
    assert time.monotonic() - begin < 90, "the job takes ten minutes"
    DirectoryLock(tmp_path / "data").release()


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            CannotPrint("the output cannot be written: No space left on device"),
            "the output cannot be written: No space",
        ),
        (Unreachable("the server died"), "the server died; the server's log is data/server.log"),
        (KeyboardInterrupt(), "interrupted; recorded results stay in data, and `make demo` continues from there"),
    ],
    ids=["full disk", "no server", "interrupt"],
)
def test_however_it_ends_early_it_says_so_in_a_sentence_and_sigterm_ends_its_server_too(
    monkeypatch: pytest.MonkeyPatch, ends: BaseException, said: str
) -> None:
    @contextmanager
    def running_server(data: Path, gpu: str) -> Iterator[str]:
        raise ends
        yield ""

    handlers: dict[int, Callable[..., None]] = {}
    monkeypatch.setattr(demo_module, "running_server", running_server)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    result = CliRunner().invoke(demo_module.main, ["--data", "data"])
    assert (result.exit_code, result.output.strip().startswith(f"demo: {said}")) == (1, True), result.output
    assert handlers.keys() == {signal.SIGTERM}
    with pytest.raises(SystemExit, match="143"):  # unlike the signal itself, it passes through blocks that end servers
        handlers[signal.SIGTERM](signal.SIGTERM, None)


# In CI, the test above has a full disk.
@pytest.mark.soak
def test_a_full_disk_behind_stdout_is_a_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full, start(tmp_path, stdout=full) as demo:
        _, errors = demo.communicate(timeout=120)
    assert (demo.returncode, errors) == (1, "demo: the output cannot be written: No space left on device\n")
    DirectoryLock(tmp_path / "data").release()


@pytest.mark.slow
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with start(tmp_path, "--gpu", "h9000") as demo:
        _, errors = demo.communicate(timeout=120)
    assert demo.returncode != 0
    assert "h9000" in errors
    assert "Traceback" not in errors
