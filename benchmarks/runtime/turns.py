"""Processes that each capture CUDA graphs of a model, and whose graphs then take turns on one card."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

NUM_TURNS = 25

#: Microseconds of each turn, by task and graph.
Times = dict[tuple[str, str], list[float]]


class Graphs(Protocol):
    """What a process has captured, by name."""

    graphs: dict[str, Any]
    #: What the parent is told of a graph.
    about: dict[str, Any]

    def capture(self, batch: int) -> None:
        """Captures all of this many sequences, in place of what there was."""

    def before(self, name: str) -> None:
        """Makes ready for the replays of a turn."""

    def kernels(self, name: str) -> list[dict[str, Any]]:
        """Kernels of one replay, summed up by name."""


def replay_us(graph: Any) -> float:
    """Times one replay; one that is not timed runs before it."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def serve(pipe: Connection, make: Callable[[], Graphs]) -> None:
    """A process: captures what it is requested, tells what it has, and answers until it is told None."""
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():
        graphs: Graphs | None = None
        for ask, what in iter(pipe.recv, None):
            if ask == "capture":
                try:
                    graphs = graphs or make()
                    graphs.capture(what)
                    pipe.send(("ready", graphs.about))
                except Exception:
                    pipe.send(("failed", traceback.format_exc()[-1500:]))
                continue
            assert graphs is not None
            if ask == "time":
                graphs.before(what)
                pipe.send(replay_us(graphs.graphs[what]))
            else:
                pipe.send(graphs.kernels(what))


class Client:
    """A process as its parent sees it."""

    def __init__(self, name: str, make: Callable[[], Graphs]) -> None:
        """`make` goes to the process, which calls it when it first captures."""
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there, make))
        self._process.start()
        there.close()
        self._begin_s = time.perf_counter()
        self.about: dict[str, Any] = {}
        self.failure = ""

    def begin(self, batch: int) -> None:
        """Has it capture; nothing is waited for."""
        self._begin_s, self.about, self.failure = time.perf_counter(), {}, ""
        self._pipe.send(("capture", batch))

    def wait(self, seconds: float) -> None:
        """Until it has captured, or for so long; one that has not is ended."""
        try:
            if not self._pipe.poll(max(0.0, seconds)):
                self.failure = "it was not compiled in time"
                self.end()
            else:
                state, answer = self._pipe.recv()
                self.about, self.failure = (answer, "") if state == "ready" else ({}, answer)
        except (EOFError, OSError):
            self.failure = "its process ended"
        print(f"{self.name}: {time.perf_counter() - self._begin_s:.1f} s {self.failure}", flush=True)

    def ask(self, what: str, name: str) -> Any:
        """`time` or `kernels` of one of its graphs."""
        self._pipe.send((what, name))
        return self._pipe.recv()

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def take_turns(clients: Sequence[Client], names: Callable[[Client], Sequence[str]]) -> Times:
    """Microseconds of each turn, by client and graph; `names`: of a client's graphs that take part."""
    asked = [(client, name) for client in clients for name in names(client)]
    found: Times = {(client.name, name): [] for client, name in asked}
    for _ in range(NUM_TURNS):
        for client, name in asked:
            found[client.name, name].append(client.ask("time", name))
    return found
