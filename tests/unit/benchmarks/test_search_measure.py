"""The program that measures searches: it starts as one expects, and costs the processes that it spawns nothing."""

from __future__ import annotations

import subprocess
import sys

from tests.support.repository import ROOT


def output_of(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_it_lists_its_tasks() -> None:
    listed = output_of("-m", "benchmarks.search.measure", "--list", "--gpu", "simulated:h200")
    assert "ladder: " in listed


def test_what_a_spawned_process_imports_of_it_is_little() -> None:
    imported = output_of("-c", "import sys, benchmarks.search.measure; print(*sys.modules)").split()
    assert not {"numpy", "sqlalchemy", "tuner.service", "benchmarks.search.command"} & set(imported)
