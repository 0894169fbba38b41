"""Tasks on all cards of this machine at the same time: one process per card, with its share of the cores."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.common.report import machine_of
from benchmarks.common.workbench import message_of
from benchmarks.search.bench import Bench, open_card
from benchmarks.search.tasks import Entry, Table, Task, all_tasks
from tuner.core.problem.gpu import listed_gpu, parse_target
from tuner.workers.host.cards import usable_gpus
from tuner.workers.protocol.process import die_with_parent

#: Maximum seconds for a card's process to end.
_PATIENCE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The first message of a card's process."""

    machine: dict[str, Any]
    simulated: bool


@dataclass(frozen=True, kw_only=True)
class Done:
    """The result of a task."""

    name: str
    wall_s: float
    #: None if it failed.
    entry: Entry | None
    failure: str = ""


def cards_here(gpu: str) -> list[str]:
    """UUIDs of the cards that are used; one without a name if the GPU is simulated.

    Raises:
        WorkerError: there is none.
    """
    return [card.uuid for card in usable_gpus()] if gpu == "auto" else [""]


def target_here(gpu: str) -> str:
    """The id of the cards that are used, e.g. ``h100``.

    Raises:
        WorkerError: there is none.
        InvalidInput: `gpu` cannot be simulated.
    """
    if gpu != "auto":
        return parse_target(gpu).id
    name = usable_gpus()[0].name
    listed = listed_gpu(name)
    return listed.id if listed else name


class CardProcess:
    """A process at one card; it runs tasks in sequence."""

    def __init__(self, gpu: str, uuid: str, cores: Sequence[int]) -> None:
        """Starts it; does not wait."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, gpu, uuid, tuple(cores), os.getpid())
        self._process = context.Process(target=_serve, args=arguments, name=f"bench {uuid}")
        self._process.start()
        theirs.close()
        #: Its current task; None while it opens the card, or is idle.
        self.task: Task | None = None

    def begin(self, task: Task, table: Table) -> None:
        """Sends it a task, with the results so far."""
        self.task = task
        self.pipe.send((task.name, dict(table)))

    def end(self) -> None:
        """Lets it close its card; kills it if it does not."""
        self.pipe.close()
        self._process.join(_PATIENCE_S)
        self._process.kill()


class SideBySide:
    """Assigns tasks to the cards, in order, as long as there is time."""

    def __init__(self, tasks: Sequence[Task], table: Table, left_s: Callable[[], float]) -> None:
        """`table` has the results; the entries of these tasks are added later."""
        self._left = list(tasks)
        self._table = table
        self._left_s = left_s

    def next(self) -> Task | None:
        """The next task of a free card; None if there is none."""
        for task in self._left:
            if task.name not in self._table and task.seconds <= self._left_s() and self._is_ready(task):
                self._left.remove(task)
                return task
        return None

    def _is_ready(self, task: Task) -> bool:
        return all(name in self._table for name in task.needs)

    def not_begun(self) -> list[str]:
        """Names of the remaining tasks."""
        return [task.name for task in self._left if task.name not in self._table]


def run_on_cards(
    gpu: str,
    uuids: Sequence[str],
    line: SideBySide,
    table: Table,
    opened: Callable[[Opened], None],
    done: Callable[[Done], None],
) -> None:
    """Runs all tasks. `opened` is called for each card before its first task, and `done` for each task."""
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[i :: len(uuids)] if len(cores) >= 2 * len(uuids) else cores for i in range(len(uuids))]
    with ExitStack() as stack:
        at_work = list[CardProcess]()
        for uuid, share in zip(uuids, shares, strict=True):
            process = CardProcess(gpu, uuid, share)
            stack.callback(process.end)
            at_work.append(process)
        idle = list[CardProcess]()
        while at_work:
            ready = wait([process.pipe for process in at_work])
            for process in [one for one in at_work if one.pipe in ready]:
                at_work.remove(process)
                if _heard(process, opened, done):
                    idle.append(process)
            for process in list(idle):  # a task may become ready when another has ended
                if task := line.next():
                    process.begin(task, table)
                    idle.remove(process)
                    at_work.append(process)


def _heard(process: CardProcess, opened: Callable[[Opened], None], done: Callable[[Done], None]) -> bool:
    """Forwards a message of the process; returns whether the process is alive."""
    try:
        word = process.pipe.recv()
    except EOFError:
        name = process.task.name if process.task else "its card"
        done(Done(name=name, wall_s=0.0, entry=None, failure=f"the process of {name} died"))
        return False
    if isinstance(word, Opened):
        opened(word)
    else:
        done(word)
    return True


def _serve(pipe: Connection, gpu: str, uuid: str, cores: tuple[int, ...], parent: int) -> None:
    """Opens the card, and runs the tasks. Consecutive tasks of one part share a service."""
    die_with_parent(parent)
    os.sched_setaffinity(0, cores)
    if uuid:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    tasks = {task.name: task for task in all_tasks()}
    with open_card(gpu) as card, ExitStack() as stack:
        environment = card.environment
        pipe.send(Opened(machine=machine_of(environment), simulated=environment.simulated))
        part, bench = "", None
        while (asked := _asked(pipe)) is not None:
            task, table = tasks[asked[0]], asked[1]
            if bench is None or task.part != part:
                stack.close()
                part, bench = task.part, stack.enter_context(card.open_bench())
            pipe.send(_run(task, bench, table))


def _asked(pipe: Connection) -> tuple[str, Table] | None:
    try:
        asked: tuple[str, Table] = pipe.recv()
    except EOFError:
        return None
    return asked


def _run(task: Task, bench: Bench, table: Table) -> Done:
    begin_s = time.monotonic()
    try:
        entry, failure = task.run(bench, table), ""
    except Exception as error:  # the other tasks may succeed, whatever the error
        entry, failure = None, message_of(error)
    return Done(name=task.name, wall_s=round(time.monotonic() - begin_s, 1), entry=entry, failure=failure)
