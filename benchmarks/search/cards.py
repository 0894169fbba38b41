"""Tasks on all cards of this machine, side by side: a process a card, with its share of the cores."""

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

#: Seconds that a card's process takes to end.
_PATIENCE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The first word of a card's process."""

    machine: dict[str, Any]
    simulated: bool


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of a task."""

    name: str
    wall_s: float
    #: None where it failed.
    entry: Entry | None
    failure: str = ""


def cards_here(gpu: str) -> list[str]:
    """UUIDs of the cards that are measured on; one without a name where the GPU is simulated.

    Raises:
        WorkerError: there is none.
    """
    return [card.uuid for card in usable_gpus()] if gpu == "auto" else [""]


def target_here(gpu: str) -> str:
    """The id of the cards that are measured on, e.g. ``h100``.

    Raises:
        WorkerError: there is none.
        InvalidInput: `gpu` names none that can be simulated.
    """
    if gpu != "auto":
        return parse_target(gpu).id
    name = usable_gpus()[0].name
    listed = listed_gpu(name)
    return listed.id if listed else name


class CardProcess:
    """A process at one card; it takes one task after the other."""

    def __init__(self, gpu: str, uuid: str, cores: Sequence[int]) -> None:
        """Starts it; nothing is waited for."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, gpu, uuid, tuple(cores), os.getpid())
        self._process = context.Process(target=_serve, args=arguments, name=f"bench {uuid}")
        self._process.start()
        theirs.close()
        #: What it works on; None while it opens the card or waits.
        self.task: Task | None = None

    def begin(self, task: Task, table: Table) -> None:
        """Hands it a task, with what was found so far."""
        self.task = task
        self.pipe.send((task.name, dict(table)))

    def end(self) -> None:
        """Has it close its card; one that does not is killed."""
        self.pipe.close()
        self._process.join(_PATIENCE_S)
        self._process.kill()


class SideBySide:
    """Gives tasks to the cards, the first of those left first, as long as there is time."""

    def __init__(self, tasks: Sequence[Task], table: Table, left_s: Callable[[], float]) -> None:
        """`table` is what was found, the tasks' own entries later among it."""
        self._left = list(tasks)
        self._table = table
        self._left_s = left_s

    def next(self) -> Task | None:
        """What a card that is free begins now; None where nothing can be."""
        for task in self._left:
            if task.name not in self._table and task.seconds <= self._left_s() and self._is_ready(task):
                self._left.remove(task)
                return task
        return None

    def _is_ready(self, task: Task) -> bool:
        return all(name in self._table for name in task.needs)

    def not_begun(self) -> list[str]:
        """Names of what is left."""
        return [task.name for task in self._left if task.name not in self._table]


def run_on_cards(
    gpu: str,
    uuids: Sequence[str],
    line: SideBySide,
    table: Table,
    opened: Callable[[Opened], None],
    done: Callable[[Done], None],
) -> None:
    """Works the line off. `opened` is told of each card before its first task, and `done` of each task."""
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
            for process in list(idle):  # a task may be ready now that another one has ended
                if task := line.next():
                    process.begin(task, table)
                    idle.remove(process)
                    at_work.append(process)


def _heard(process: CardProcess, opened: Callable[[Opened], None], done: Callable[[Done], None]) -> bool:
    """Passes on what a process says; whether it lives."""
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
    """Opens the card, and runs what comes. Neighbouring tasks of one part share a service."""
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
    except Exception as error:  # whatever it is, the other tasks may come through
        entry, failure = None, message_of(error)
    return Done(name=task.name, wall_s=round(time.monotonic() - begin_s, 1), entry=entry, failure=failure)
