"""The program that measures searches: it starts as one expects, and costs the processes that it spawns nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.search import cards
from benchmarks.search.command import main
from tests.support.repository import ROOT
from tuner.errors import WorkerError


def output_of(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_it_lists_its_tasks() -> None:
    listed = output_of("-m", "benchmarks.search.measure", "--list", "--gpu", "simulated:h200")
    assert "ladder: " in listed


def test_without_a_card_it_says_so_and_lists_its_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise WorkerError("there is no card")

    monkeypatch.setattr(cards, "usable_gpus", none)
    main(["--list", "--task", "ladder"])
    assert capsys.readouterr().out.startswith("ladder: ")
    with pytest.raises(SystemExit, match=r"--gpu auto: there is no card; .* --gpu simulated:h200"):
        main([])
    with pytest.raises(SystemExit, match=r"--gpu: .*no GPU is called 'sim'"):
        main(["--gpu", "sim", "--list"])


def test_what_a_spawned_process_imports_of_it_is_little() -> None:
    imported = output_of("-c", "import sys, benchmarks.search.measure; print(*sys.modules)").split()
    assert not {"numpy", "sqlalchemy", "tuner.service", "benchmarks.search.command"} & set(imported)
