"""Soak programs at about a hundredth of their size, so that they stay runnable; an interrupted run continues with what
it stored."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.soak import answers, kernels, searches
from tests.soak.program import KEPT, Program, Row, Step, run, total
from tests.soak.programs import PROGRAMS
from tests.support.lanes import soak_unless
from tuner.core.schedule.tiling import Tiling

#: Programs that only `make soak` runs, and the tests that find the same faults in CI.
ELSEWHERE = {
    "answers": "tests/service/api/test_bad_input.py and test_documented.py",
    "cluster": "tests/service/dispatch/test_cluster_faults.py",
    "convs": "tests/compile/test_convs.py and test_conv_pairs.py",
    "crowds": "tests/service/api/test_connections.py",
    "emulated": "tests/compile/test_emulated.py",
    "finals": "tests/service/service/test_kill.py",
    "interleavings": "tests/unit/core/proof/test_second_oracle.py",
    "kernels": "tests/compile/test_wgmma.py and test_conformance.py",
    "kills": "tests/service/service/test_kill.py, which calls the same check",
    "liars": "tests/service/dispatch/test_lying_workers.py",
    "loads": "tests/service/api/test_events.py and tests/service/service/test_intake.py",
    "packs": "tests/unit/runtime/test_programs.py, which runs the same program",
    "proof": "tests/unit/core/proof/test_second_oracle.py",
    "proxies": "tests/service/client/test_hostile_proxy.py",
    "searches": "tests/unit/search/test_trajectories.py",
    "storage": "tests/service/service/test_foreign_locks.py",
    "tilings": "tests/compile/test_machine_code.py",
}

#: The share to run if a hundredth is less than one unit, too few to be useful (two chains), or too slow for CI.
SHARES = {
    **dict.fromkeys(("convs", "liars"), 0.004),
    "cluster": 0.002,
    **dict.fromkeys(("inputs", "loads"), 0.001),
    **dict.fromkeys(("interleavings", "proof"), 0.003),
    "crowds": 0.0015,
}
#: Of the operations, `answers` asks every twelfth.
OPERATIONS = slice(None, None, 12)


class Fewer(searches.Narrow):
    """Every sixth tiling: the exhaustive best among all takes most of the time of a single search."""

    @cached_property
    def tilings(self) -> tuple[Tiling, ...]:
        return super().tilings[::6]

    @property
    def guesses(self) -> list[Tiling]:
        return [tiling for tiling in super().guesses if tiling in self.tilings]


@pytest.fixture
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "SPACE", Fewer(searches.PROBLEM.workload, searches.TARGET.gpu))
    monkeypatch.setattr(answers, "OPERATIONS", OPERATIONS)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("smaller")
@pytest.mark.parametrize(
    "program", soak_unless(lambda _, program: program.name not in ELSEWHERE, PROGRAMS), ids=lambda program: program.name
)
def test_a_hundredth_of_a_soak_program_finds_nothing_wrong(program: Program, tmp_path: Path) -> None:
    size = int(program.size * SHARES.get(program.name, 0.01))
    small = replace(program, step=min(program.step, size))
    assert run(small, size=size, kept=tmp_path, results=tmp_path) == []
    kept = json.loads((tmp_path / f"{program.name}.json").read_text())
    assert kept["rows"]
    assert kept["meta"]["size"] >= size
    assert (kept["meta"]["seed"], kept["meta"]["unit"]) == (1, program.unit)


@pytest.mark.soak
def test_a_whole_run_of_kernels_takes_each_once() -> None:
    assert 0.9 * kernels.SIZE < len(kernels.builds()) <= kernels.SIZE


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    wrong = [f"unit {row['unit']} is wrong" for row in rows if row["unit"] == 13]
    return total(rows, "sum"), wrong


class Units:
    """Records the requested units, and can be interrupted."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.num_left = 1000

    def __call__(self, step: Step) -> list[Row]:
        if self.num_left == 0:
            raise KeyboardInterrupt
        self.num_left -= 1
        self.steps.append(step)
        return [{"sum": "all", "unit": step.first + i} for i in range(step.count)]

    @property
    def program(self) -> Program:
        return Program(name="units", unit="units", size=10, step=2, work=self, judge=judge)


def test_a_run_that_was_cut_goes_on_where_it_was_and_comes_to_the_same(tmp_path: Path) -> None:
    units = Units()
    units.num_left = 3
    with pytest.raises(KeyboardInterrupt):
        run(units.program, kept=tmp_path, results=tmp_path)
    assert not (tmp_path / "units.json").exists()
    units.num_left = 1000
    assert run(units.program, kept=tmp_path, results=tmp_path) == []
    assert [step.first for step in units.steps] == [0, 2, 4, 6, 8]
    assert json.loads((tmp_path / "units.json").read_text())["rows"] == [{"sum": "all", "unit": sum(range(10))}]


def test_the_commands_of_all_parts_of_a_run_are_told_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = Units()
    spec = ModuleSpec("tests.soak.__main__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    for num_left, arguments in ((2, "units --seconds 5"), (2, "units --seconds 5"), (9, "units --results /a/b/new")):
        units.num_left = num_left
        monkeypatch.setattr(sys, "argv", ["soak", *arguments.split()])
        with suppress(KeyboardInterrupt):
            run(units.program, kept=tmp_path, results=tmp_path)
    meta = json.loads((tmp_path / "units.json").read_text())["meta"]
    assert meta["command"] == "python -m tests.soak units --seconds 5; python -m tests.soak units --results new"


def test_a_line_that_was_cut_is_done_again(tmp_path: Path) -> None:
    units = Units()
    run(units.program, kept=tmp_path, results=tmp_path)
    (kept,) = tmp_path.glob("*.jsonl")
    kept.write_text(kept.read_text()[:-10])
    run(units.program, kept=tmp_path, results=tmp_path)
    assert [step.first for step in units.steps] == [0, 2, 4, 6, 8, 8]


def test_another_seed_is_another_run_with_numbers_of_its_own(tmp_path: Path) -> None:
    units = Units()
    for seed in (1, 2):
        run(units.program, seed=seed, kept=tmp_path, results=tmp_path)
    assert len(units.steps) == 10
    assert len({step.seed for step in units.steps}) == 10


def test_time_that_is_over_leaves_the_rest_for_the_next_run(tmp_path: Path) -> None:
    units = Units()
    assert run(units.program, seconds=0, kept=tmp_path, results=tmp_path) is None
    assert units.steps == []


def work(step: Step) -> list[Row]:
    return [{"sum": "all", "unit": step.first + i} for i in range(step.count)]


def test_several_processes_come_to_the_same(tmp_path: Path) -> None:
    program = replace(Units().program, work=work)
    assert run(program, num_processes=2, kept=tmp_path, results=tmp_path) == []
    assert json.loads((tmp_path / "units.json").read_text())["rows"] == [{"sum": "all", "unit": sum(range(10))}]
    (kept,) = tmp_path.glob("*.jsonl")
    assert len(kept.read_text().splitlines()) == 5


def test_what_is_wrong_is_said_and_the_figures_are_written(tmp_path: Path) -> None:
    program = replace(Units().program, size=14)
    assert run(program, kept=tmp_path, results=tmp_path) == ["unit 13 is wrong"]
    assert (tmp_path / "units.json").exists()


def test_what_is_kept_lies_where_git_does_not_look(pytestconfig: pytest.Config) -> None:
    assert KEPT.relative_to(pytestconfig.rootpath).parts[0] == "build"
