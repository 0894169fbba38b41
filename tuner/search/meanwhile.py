"""Results that a search will need later, computed in advance by a fork of its process.

A fork has everything that the search has computed, so it starts immediately; another process would have to import the
program and enumerate the space first. If the fork dies, its work is done in the search's process.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

#: Calls by name, in the order in which they are needed. Their results must not depend on changing state.
Calls = Mapping[Any, Callable[[], Any]]
#: Returns the result of a call by its name; each result can be taken once.
Take = Callable[[Hashable], Any]
Begin = Callable[[Calls], Take]

#: With fewer cores, a fork would take a core from the builds.
LEAST_CORES = 4
#: Number of cores per fork that a search may run at the same time; the other cores build.
CORES_PER_FORK = 3
#: Maximum number of results waiting to be read, besides the one in the pipe, so that little work is done for a choice
#: that may never come.
_NUM_AHEAD = 1
#: An upper bound on the number of open descriptors in a search's process.
_MOST_FILES = 4096


def in_fork(calls: Calls) -> Take:
    """Starts the calls in a fork of this process; the caller must be its only Python thread."""
    return _Fork(calls).take


def begin_here() -> Begin | None:
    """How to start background work on this machine; None if there is no spare core."""
    return in_fork if len(os.sched_getaffinity(0)) >= LEAST_CORES else None


def num_forks() -> int:
    """How many forks of one search may work at the same time on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // CORES_PER_FORK)


#: Forks of this process whose results may still be read.
_open_forks = weakref.WeakSet["_Fork"]()


class _Fork:
    """A fork and its results. The fork is killed when the object is deleted."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._found: dict[Hashable, Any] = {}
        reader, writer = multiprocessing.Pipe(duplex=False)
        with warnings.catch_warnings():
            # Python 3.12 also counts the threads of BLAS, which handles forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _work(calls, writer)
        writer.close()
        self._reader = reader
        self._end = weakref.finalize(self, _end, pid, reader)
        _open_forks.add(self)

    def leave_to_parent(self) -> None:
        """Must be called in a later fork, which has a copy of this object, so that deleting the copy does not end the
        fork."""
        self._end.detach()
        self._reader.close()

    def take(self, name: Hashable) -> Any:
        """The result of the call with that name."""
        while name not in self._found and self._end.alive:
            try:
                found, value = self._reader.recv()
            except (EOFError, OSError):
                self._end()
            else:
                self._found[found] = value
        return self._found.pop(name) if name in self._found else self._calls[name]()


def _end(pid: int, reader: Connection) -> None:
    reader.close()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _work(calls: Calls, writer: Connection) -> None:
    """The fork's work; it never returns. It closes other open files, so that their readers notice when the parent
    ends.
    """
    try:
        for fork in list(_open_forks):
            fork.leave_to_parent()
        os.closerange(3, writer.fileno())
        os.closerange(writer.fileno() + 1, _MOST_FILES)
        results: queue.Queue[Any] = queue.Queue(_NUM_AHEAD)
        sender = threading.Thread(target=_send, args=(results, writer))
        sender.start()
        for name, call in calls.items():
            results.put((name, call()))
        results.put(None)
        sender.join()
    finally:
        os._exit(0)


def _send(results: queue.Queue[Any], writer: Connection) -> None:
    """Ends the fork after the last result, or when it is no longer read."""
    try:
        while (result := results.get()) is not None:
            writer.send(result)
    finally:
        os._exit(0)
