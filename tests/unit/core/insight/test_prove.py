"""The output of `tuner prove`: the proof as text, and a drawing of the witness of a broken plan."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support import builders, mutants
from tests.support.attentions import alone, attention
from tuner.cli import main
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import in_fewest_launches
from tuner.errors import LivenessError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schedule.json"
    workload, schedule = builders.workload(), builders.schedule()
    path.write_text(json.dumps({"workload": workload.to_json(), "gpu": "h200", "schedule": schedule.to_json()}))
    return path


@pytest.fixture
def proven() -> VerifiedPlan:
    workload = builders.workload()
    (one,) = plans_for(workload, CATALOGUE["h200"], in_fewest_launches(workload, builders.schedule()))
    return one


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["prove", *map(str, arguments)])


def test_the_proof_is_told_with_its_numbers_and_who_waits_for_whom(file: Path, proven: VerifiedPlan) -> None:
    result = run(file)
    assert result.exit_code == 0
    plan, graph = proven.plan, proven.graph
    assert f"up and down: {plan.num_tasks} tasks on {plan.num_ctas} CTAs" in result.stdout
    assert f"Safety: {graph.num_edges(plan.tasks)} edges, each covered by waits" in result.stdout
    ups = int((plan.tasks[:, 0] == 0).sum())
    assert f"up: no task waits, 1 signal of {ups} posts" in result.stdout
    last = plan.num_tasks - 1
    drawn = result.stdout.splitlines()[-4:]
    assert drawn[0].startswith("task 0 (up tile 0,0), ")
    assert drawn[0].endswith(f"and {ups - 3} more")
    assert drawn[1:3] == [f"  │ signal 0, {ups} posts each: before k-step 0", "  ▼"]
    assert drawn[3] == f"task {last} (down tile 0,3)"


def test_a_task_is_drawn_with_those_that_wait_for_it(file: Path, proven: VerifiedPlan) -> None:
    lines = run(file, "--task", 2).stdout.splitlines()
    head = lines.index("task 2 (up tile 0,2), which waits for nothing")
    assert lines[head + 1 : head + 3] == ["  │ signal 0", "  ▼"]
    assert lines[head + 3].startswith("task 8 (down tile 0,0), task 9 (down tile 0,1), ")


def test_launches_apart_wait_for_nobody(file: Path) -> None:
    result = run(file, "--plan-kind", "two_launches")
    assert result.stdout.count("Safety: no task reads what another task of the launch writes.") == 2
    assert run(file, "--plan-kind", "library").exit_code == 2


def test_of_a_deadlock_the_circle_is_drawn(file: Path, proven: VerifiedPlan, tmp_path: Path) -> None:
    plan = proven.plan
    path = tmp_path / "plan0.bin"
    path.write_bytes(mutants.move(plan, plan.num_tasks - 1, 0, 0).table)
    result = run(file, "--plan", path)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    head = lines.index("Refused: the plan deadlocks.")
    assert lines[head + 1] == "┌─▶ task 0 (down tile 0,3)"
    assert "waits for signal 0 (0 of 8 posts), which task 1 (up tile 0,0) would post" in lines[head + 2]
    assert lines[-1] == "└─────┘"


def test_of_another_fault_the_witness_is_told(file: Path, proven: VerifiedPlan, tmp_path: Path) -> None:
    plan, path = proven.plan, tmp_path / "plan0.bin"
    last = plan.num_tasks - 1
    path.write_bytes(mutants.edit(plan, last, 4, int(plan.tasks[last, 3])).table)  # the last task no longer waits
    result = run(file, "--plan", path)
    assert result.exit_code == 1
    assert "Refused: a read can come before its write.\nWitness: task 11 (down tile 0,3) can load" in result.stdout
    path.write_bytes(b"no plan")
    assert "Refused: " in run(file, "--plan", path).stdout
    assert "the plans differ" in run(file, "--plan", path, "--plan", path).stdout


def test_a_deadlock_keeps_its_circle_on_the_way_from_another_process() -> None:
    error = LivenessError("the plan deadlocks", "1; 2", (("task 1", "waits"),))
    again = pickle.loads(pickle.dumps(error))
    assert (again.problem, again.witness, again.cycle) == (error.problem, error.witness, error.cycle)


def test_an_op_with_a_launch_of_its_own_is_proven_by_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    document = {"workload": attention().to_json(), "gpu": "h200", "schedule": alone().to_json()}
    path.write_text(json.dumps(document))
    result = run(path)
    assert result.exit_code == 0, result.output
    assert "has its own launch; the code of its kind proved its plan." in result.stdout
