"""A script that starts processes runs once, with or without a main guard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lanes import soaked
from tests.support.repository import ROOT

SEARCH = """
from tests.unit.search.test_processes import ORDER
from tuner.search import SearchProcesses
processes = SearchProcesses(1)
with processes.search(ORDER) as search:
    assert search.ask() is not None
processes.close()
"""
BUILD = """
import sys
from contextlib import closing
from pathlib import Path
from tuner.workers.builder.nvrtc import Builder
with closing(Builder(Path(sys.argv[1]), num_processes=3)) as builder:
    assert builder.run(divmod, 7, 2) == (3, 1)
"""
AT_THE_CARD = """
from tests.unit.workers.host.test_gpu_process import PROBLEM, rogue
from tuner.core.trial.limits import Limits
from tuner.workers.host.gpu_process import GpuProcesses
processes = GpuProcesses("behaves", b"", Limits(), main=rogue)
assert processes.ready(PROBLEM) is None
processes.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [*soaked(SEARCH), BUILD, *soaked(AT_THE_CARD)], ids=["search", "build", "at the card"]
)
def test_no_process_runs_the_script_that_started_it(tmp_path: Path, program: str) -> None:
    script, runs = tmp_path / "script.py", tmp_path / "runs"
    script.write_text(f"print(__name__, file=open({str(runs)!r}, 'a'))\n{program}")
    command = [sys.executable, str(script), str(tmp_path / "builds")]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert runs.read_text().split() == ["__main__"]
