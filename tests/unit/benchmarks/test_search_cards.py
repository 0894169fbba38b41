"""Tasks on several GPUs: each starts once, in order, after its dependencies and within the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.search.bench import Bench
from benchmarks.search.cards import SideBySide
from benchmarks.search.measure import chosen_tasks
from benchmarks.search.tasks import Entry, Table, Task


def run(bench: Bench, table: Table) -> Entry:
    raise AssertionError("no card is here")


def task(name: str, seconds: float = 10.0, needs: tuple[str, ...] = ()) -> Task:
    return Task(name=name, part="part", seconds=seconds, run=run, needs=needs)


def name_of(given: Task | None) -> str | None:
    return given and given.name


def test_each_task_is_begun_once_in_order() -> None:
    line = SideBySide([task("a"), task("b")], {}, lambda: 100.0)
    assert [name_of(line.next()) for _ in range(3)] == ["a", "b", None]
    assert line.not_begun() == []


def test_what_needs_another_ones_entry_waits_and_others_overtake_it() -> None:
    table: dict[str, Entry] = {}
    line = SideBySide([task("first"), task("second", needs=("first",)), task("third")], table, lambda: 100.0)
    assert [name_of(line.next()) for _ in range(3)] == ["first", "third", None]
    table["first"] = {}
    assert name_of(line.next()) == "second"


def test_what_does_not_fit_is_left_and_a_shorter_one_is_begun() -> None:
    left_s = [15.0]
    line = SideBySide([task("long", 20.0), task("short", 10.0)], {}, lambda: left_s[0])
    assert name_of(line.next()) == "short"
    left_s[0] = 5.0
    assert line.next() is None
    assert line.not_begun() == ["long"]


def test_what_the_file_has_is_not_run_again() -> None:
    line = SideBySide([task("kept"), task("new")], {"kept": {}}, lambda: 100.0)
    assert name_of(line.next()) == "new"
    assert line.not_begun() == []


def test_named_tasks_come_first_then_those_of_the_named_parts_and_all_where_nothing_is_named() -> None:
    tasks = [task("a"), task("b"), replace(task("c"), part="other"), task("d")]

    def chosen(parts: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> str:
        return "".join(one.name for one in chosen_tasks(tasks, parts, names))

    assert (chosen(), chosen(("other",)), chosen((), ("d", "a"))) == ("abcd", "c", "da")
    assert (chosen(("part",), ("c",)), chosen(("part",), ("d",))) == ("cabd", "dab")
    with pytest.raises(SystemExit, match="no entry is called e, f; there are: a, b, c, d"):
        chosen((), ("a", "e", "f"))
