"""Each task runs once, in order, after its dependencies and within the time; a failure leaves the others alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from benchmarks.search import measure
from benchmarks.search.bench import Bench, Card
from benchmarks.search.measure import chosen_tasks, main, next_task, run_tasks
from benchmarks.search.tasks import Entry, Table, Task
from tuner.core.trial.evaluator import Environment
from tuner.errors import InvalidInput


def run(bench: Bench, table: Table) -> Entry:
    raise AssertionError("there is no card")


def task(name: str, seconds: float = 10.0, needs: tuple[str, ...] = ()) -> Task:
    return Task(name=name, part="part", seconds=seconds, run=run, needs=needs)


class NoCard:
    """A card without jobs; counts the services that were opened."""

    num_services = 0

    @contextmanager
    def open_bench(self) -> Iterator[str]:
        self.num_services += 1
        yield "a service"


def opened(path: Path, *anew: str, simulated: bool = True) -> measure.Table:
    table = measure.Table(path, anew)
    table.open(Environment(gpu_name="a card", simulated=simulated))
    return table


def test_a_task_waits_for_what_it_needs_and_others_overtake_it() -> None:
    tasks = [task("second", needs=("first",)), task("third")]
    assert next_task(tasks, {}, 100.0) is tasks[1]
    assert next_task(tasks, {"first": {}}, 100.0) is tasks[0]


def test_what_does_not_fit_or_is_known_is_left() -> None:
    tasks = [task("long", 20.0), task("short", 10.0)]
    assert next_task(tasks, {}, 15.0) is tasks[1]
    assert next_task(tasks, {"short": {}}, 15.0) is None


def test_tasks_of_a_part_share_a_service_and_a_failure_leaves_the_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fine(bench: Bench, table: Table) -> Entry:
        return {"job_s": float(len(table))}

    path, card = tmp_path / "search.json", NoCard()
    tasks = [
        task("bad"),
        replace(task("a"), run=fine),
        replace(task("b", needs=("c",)), run=fine),
        replace(task("c"), run=fine, part="other"),
        task("never", 1000.0),
    ]
    failures = run_tasks(cast(Card, card), tasks, opened(path), 100.0)
    assert failures == ["bad: AssertionError: there is no card"]
    assert "not begun: never" in capsys.readouterr().out
    assert card.num_services == 3, "b ran after c, in a separate service"
    kept = {job["job"]: job["job_s"] for job in json.loads(path.read_text())["jobs"]}
    assert kept == {"a": 0.0, "c": 1.0, "b": 2.0}
    assert opened(path).entries.keys() == kept.keys()
    assert opened(path, "a").entries.keys() == {"b", "c"}


def test_a_simulated_run_does_not_take_over_the_file_of_a_card(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    opened(path, simulated=False).put("a", {})
    with pytest.raises(InvalidInput, match="use a separate file for a simulated run"):
        opened(path)


def test_the_list_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list", "--task", "ladder"])
    assert capsys.readouterr().out == "ladder: 170 s\n"


def test_named_tasks_come_first_then_those_of_the_named_parts_and_all_where_nothing_is_named() -> None:
    tasks = [task("a"), task("b"), replace(task("c"), part="other"), task("d")]

    def chosen(parts: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> str:
        return "".join(one.name for one in chosen_tasks(tasks, parts, names))

    assert (chosen(), chosen(("other",)), chosen((), ("d", "a"))) == ("abcd", "c", "da")
    assert (chosen(("part",), ("c",)), chosen(("part",), ("d",))) == ("cabd", "dab")
    with pytest.raises(SystemExit, match="no entry is called e, f; the entries are: a, b, c, d"):
        chosen((), ("a", "e", "f"))
