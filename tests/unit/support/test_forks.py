"""Tests in forked processes: each runs once, and one that ends its process fails alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forks import Shares
from tests.support.repository import ROOT

TESTS = """
import os, pathlib, time, pytest
@pytest.fixture(scope="module", autouse=True)
def ends():
    yield
    path = pathlib.Path({folder!r}, f"ended-{{os.getpid()}}")
    path.write_text("")
@pytest.mark.parametrize("number", range(30))
def test_one(number, tmp_path, capfd):
    pathlib.Path({folder!r}, f"{{number}}-{{os.getpid()}}").write_text("")
    assert not list(tmp_path.iterdir())
    print(number)
    assert capfd.readouterr().out == f"{{number}}\\n"
    assert number != 7, "seven"
def test_killed():
    os.kill(os.getpid(), 9)
@pytest.mark.skip
def test_skipped(): ...
def test_behind(): ...
"""


def run(folder: Path, *flags: str) -> str:
    """The output of these tests in three processes, without our configuration and hooks."""
    (folder / "test_some.py").write_text(TESTS.format(folder=str(folder)))
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    command = [sys.executable, "-m", "pytest", "--forks", "3", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    ran = subprocess.run(
        [*command, *flags, str(folder / "test_some.py")],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_each_test_runs_once_and_one_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    printed = run(tmp_path)
    assert re.search(r"2 failed, 30 passed, 1 skipped in", printed), printed
    assert "test_killed - the process ended with -9" in printed
    assert re.search(r"test_one\[7\] - AssertionError: seven", printed)
    numbers = [int(path.name.split("-")[0]) for path in tmp_path.glob("[0-9]*-*")]
    assert sorted(numbers) == list(range(30))
    # The process that was killed has ended no fixture; the one after it has.
    ran, ended = ({path.name.split("-")[1] for path in tmp_path.glob(name)} for name in ("[0-9]*-*", "ended-*"))
    assert len(ran - ended) <= 1
    assert ended


@pytest.mark.slow
def test_it_ends_at_the_first_failure_if_asked_to(tmp_path: Path) -> None:
    assert "stopping after 1 failures" in run(tmp_path, "-x")


def test_a_process_without_tests_takes_half_of_those_of_another() -> None:
    shares = Shares(10, 2)
    assert [shares.take(0) for _ in range(6)] == [0, 1, 2, 3, 4, 7]
    assert [shares.take(1) for _ in range(2)] == [5, 6]
    assert [shares.take(0) for _ in range(3)] == [8, 9, None]
    assert shares.take(1) is None
