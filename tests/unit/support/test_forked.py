"""All processes of a run fork from one fork server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.forked import Forked
from tests.support.repository import ROOT


def parent(arguments: list[str]) -> None:
    """Prints the process that this one was forked from, and waits for its end."""
    print(os.getppid(), flush=True)
    threading.Event().wait()


@pytest.mark.slow
def test_another_process_of_the_run_forks_from_the_same_server(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.support.forked import Forked\n"
        "from tests.unit.support.test_forked import parent\n"
        "forked = Forked(parent, log=Path(sys.argv[1]))\nprint(forked.line())\nforked.kill()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "other.log")]
    forked = Forked(parent, log=tmp_path / "own.log")
    try:
        other = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert other.returncode == 0, other.stderr
        assert other.stdout.strip() == forked.line() != str(os.getpid())
    finally:
        forked.kill()
