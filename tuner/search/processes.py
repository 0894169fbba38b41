"""Searches in separate processes: choosing candidates occupies a core, and the server's interpreter handles requests.

A search can be restarted from its recorded trials, so these processes hold no state that could be lost, and may die at
any moment; using a dead one raises `SearchLost`. They end when their pipe closes, and so with the server, however it
ends. Only the server handles signals.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.connection import Connection
from traceback import format_exception
from typing import Any

from tuner.collector import spare_collector
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import Trial
from tuner.errors import SearchLost
from tuner.processes import SPAWN
from tuner.search.meanwhile import begin_here
from tuner.search.order import SearchOrder
from tuner.search.searcher import Searcher

_log = logging.getLogger(__name__)

#: Time after which a process that has not responded is considered dead and is killed, seconds. The slowest first
#: choice, for a long chain, takes some seconds of CPU time.
ANSWER_LIMIT_S = 300.0
#: The niceness of a search: neither requests nor cards should wait long for it when builds use every core.
_NICENESS = 3


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A request to a search, with the updates that it needs first."""

    #: The search's number within its process.
    number: int
    #: Searches that have ended.
    ended: tuple[int, ...]
    #: What the search starts with, in its first request; None in later ones.
    order: SearchOrder | None
    #: Trials recorded since the previous request.
    trials: tuple[Trial, ...]
    is_winding_up: bool
    #: The name of the `Searcher` method to call.
    method: str
    #: Set if the search should start with different priors than its order has.
    priors: tuple[Candidate, ...] | None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The result of the method, or its exception."""

    value: Any = None
    error: Exception | None = None
    #: The searcher's value after the call.
    waits_for_all: bool = False


class SearchProcesses:
    """A limited number of search processes. If every process has a search when another one begins, a new process is
    started."""

    def __init__(self, most: int) -> None:
        """Starts the first process, whose imports would delay the first job; `most` is at least 1."""
        self._most = most
        self._lock = threading.Lock()
        self._processes = [_Process()]
        # Runs before multiprocessing's own exit handler, which waits for processes that were not ended.
        self._end = util.Finalize(self, _kill_all, args=(self._processes,), exitpriority=10)

    @contextmanager
    def search(self, order: SearchOrder) -> Iterator[RemoteSearch]:
        """A search in one of the processes; does not block before the first call."""
        with self._lock:
            process = self._free_process()
            process.num_searches += 1
        search = RemoteSearch(process, order)
        try:
            yield search
        finally:
            search.close()
            with self._lock:
                process.num_searches -= 1

    @property
    def pids(self) -> list[int]:
        """Process ids of the live processes."""
        with self._lock:
            return [process.pid for process in self._processes if not process.is_lost]

    def close(self) -> None:
        """Kills the processes; callers that wait for one get `SearchLost`."""
        self._end()

    def _free_process(self) -> _Process:
        """The process with the fewest searches; a new one if all have searches and the maximum is not reached."""
        self._processes[:] = [process for process in self._processes if not process.is_lost]
        least = min(self._processes, key=lambda process: process.num_searches, default=None)
        if least is None or (least.num_searches > 0 and len(self._processes) < self._most):
            least = _Process()
            self._processes.append(least)
        return least


def _kill_all(processes: list[_Process]) -> None:
    for process in processes:
        process.kill()


class RemoteSearch:
    """A search in another process, with the interface of `Searcher`. It is used by one thread; `close` may be called by
    another."""

    def __init__(self, process: _Process, order: SearchOrder) -> None:
        self._process = process
        self._number = process.new_number()
        self._order: SearchOrder | None = order
        self._unsent: list[Trial] = []
        self._is_winding_up = False
        #: Priors to send with the next request; they replace those of the order.
        self._priors: tuple[Candidate, ...] | None = None
        #: Whether the next choice should wait until nothing is in progress, from the last answer.
        self.waits_for_all = False

    def ask(self) -> Candidate | None:
        """The next candidate; None if no legal one is left untried.

        Raises:
            SearchLost: its process has died.
        """
        candidate: Candidate | None = self._call("ask")
        return candidate

    def think_ahead(self) -> bool:
        """Same as `Searcher.think_ahead`; raises the same exceptions as `ask`."""
        return bool(self._call("think_ahead"))

    def foresee(self) -> Candidate | None:
        """Same as `Searcher.foresee`; raises the same exceptions as `ask`."""
        candidate: Candidate | None = self._call("foresee")
        return candidate

    def begin_with(self, priors: Iterable[Candidate]) -> None:
        """Same as `Searcher.begin_with`; sent with the next request."""
        self._priors = tuple(priors)

    def tell(self, trial: Trial) -> None:
        """Adds a recorded trial, which is sent with the next request."""
        self._unsent.append(trial)

    def wind_up(self) -> None:
        """Same as `Searcher.wind_up`."""
        self._is_winding_up = True

    def close(self) -> None:
        """Ends the search without waiting for a pending request; no further request is sent."""
        self._process.end(self._number)

    def _call(self, method: str) -> Any:
        order, trials = self._order, tuple(self._unsent)
        answer = self._process.ask(self._number, order, trials, self._is_winding_up, method, self._priors)
        if answer is None:
            return None
        self._order = self._priors = None
        del self._unsent[: len(trials)]
        if answer.error is not None:
            raise answer.error
        self.waits_for_all = answer.waits_for_all
        return answer.value


class _Process:
    """One process, which handles one request at a time."""

    def __init__(self) -> None:
        """Starts the process without waiting for it."""
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs,), name="tuner search", daemon=True)
        self._process.start()
        with suppress(ProcessLookupError):  # it may have died already, which its callers will notice
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self.pid, min(19, own + _NICENESS))
        theirs.close()
        #: Held by the thread whose request is being answered.
        self._turn = threading.Lock()
        #: Guards the fields below, and is never held for long.
        self._lock = threading.Lock()
        self._last_number = 0
        self._live: set[int] = set()
        #: Ended searches that the process does not know about yet.
        self._over: list[int] = []
        #: Whether the process has died or was killed.
        self.is_lost = False
        #: The number of its searches, guarded by its pool's lock.
        self.num_searches = 0

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def new_number(self) -> int:
        """A new number for a search."""
        with self._lock:
            self._last_number += 1
            self._live.add(self._last_number)
            return self._last_number

    def end(self, number: int) -> None:
        """Makes the process drop a search when it gets the next request of another search."""
        with self._lock:
            self._live.discard(number)
            self._over.append(number)

    def kill(self) -> None:
        """Sends SIGKILL, and waits until the process has ended. May be called from any thread."""
        self.is_lost = True
        self._process.kill()
        self._process.join()

    def ask(
        self,
        number: int,
        order: SearchOrder | None,
        trials: tuple[Trial, ...],
        is_winding_up: bool,
        method: str,
        priors: tuple[Candidate, ...] | None,
    ) -> _Answer | None:
        """The answer to a request; None if the search has ended.

        Raises:
            SearchLost: the process has died, or did not respond in time and was killed.
        """
        with self._turn:
            with self._lock:
                if number not in self._live:
                    return None
                ended, self._over = tuple(self._over), []
            if self.is_lost:
                raise SearchLost("its process has died")
            request = _Request(
                number=number,
                ended=ended,
                order=order,
                trials=trials,
                is_winding_up=is_winding_up,
                method=method,
                priors=priors,
            )
            try:
                self._pipe.send(request)
                if not self._pipe.poll(ANSWER_LIMIT_S):
                    raise TimeoutError(f"it did not respond within {ANSWER_LIMIT_S:g} s")
                answer = self._pipe.recv()
                if not isinstance(answer, _Answer):
                    raise TypeError(f"it answered with a {type(answer).__name__}")
            except (EOFError, OSError, TypeError, pickle.UnpicklingError) as error:
                self.kill()
                raise SearchLost(f"its process has died: {error or type(error).__name__}") from error
            return answer


def _serve(pipe: Connection) -> None:
    """The process's loop: answers requests until its pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # while the server drains, it may still send requests
    spare_collector()
    searches: dict[int, Searcher] = {}
    while True:
        try:
            request = pipe.recv()
            pipe.send(_answer(searches, request))
        except (EOFError, OSError):
            return


def _answer(searches: dict[int, Searcher], request: _Request) -> _Answer:
    """Updates a search to its caller's state, and calls the method."""
    for number in request.ended:
        searches.pop(number, None)
    try:
        if request.order is not None:
            searches[request.number] = request.order.begin(begin_here())
        searcher = searches[request.number]
        if request.priors is not None:
            searcher.begin_with(request.priors)
        for trial in request.trials:
            searcher.tell(trial)
        if request.is_winding_up:
            searcher.wind_up()
        value = getattr(searcher, request.method)()
        return _Answer(value=value, waits_for_all=searcher.waits_for_all)
    except Exception as error:
        return _Answer(error=_portable(error))


def _portable(error: Exception) -> Exception:
    """The exception, or its message if it cannot be pickled, with its traceback as a note."""
    note = "".join(format_exception(error))
    error.add_note(note)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(note)
    return error
