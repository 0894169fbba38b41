"""Runs collected tests in forked processes: `pytest --forks 5`. Each process of xdist collects all tests again, which
takes 20 s of processor time."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from multiprocessing import Pipe, get_context, util
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest


class Shares:
    """The tests of each process, by index: consecutive ones, since they share fixtures. A process without any takes
    half of those of the process that has the most left."""

    def __init__(self, num_tests: int, num_processes: int) -> None:
        context = get_context("fork")
        self._lock = context.Lock()
        bounds = [number * num_tests // num_processes for number in range(num_processes + 1)]
        self._begins, self._ends = context.RawArray("l", bounds[:-1]), context.RawArray("l", bounds[1:])

    def take(self, process: int) -> int | None:
        """The next test of a process; None if all tests are taken."""
        with self._lock:
            if self._begins[process] == self._ends[process]:
                left = [end - begin for begin, end in zip(self._begins, self._ends, strict=True)]
                most = left.index(max(left))
                self._ends[process] = self._ends[most]
                self._ends[most] -= (left[most] + 1) // 2
                self._begins[process] = self._ends[most]
            if self._begins[process] == self._ends[process]:
                return None
            self._begins[process] += 1
            return int(self._begins[process]) - 1


class Running:
    """A forked process, as its parent sees it."""

    def __init__(self, session: pytest.Session, shares: Shares, number: int, first: int | None = None) -> None:
        """Forks it; it begins with the test `first`, or takes one of its share."""
        self._session, self.number = session, number
        #: The index of the test that it runs, and of the one that it has taken for later.
        self._now: int | None = None
        self.later: int | None = None
        self.has_ended = False
        reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pipe, its = Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            self.pipe.close()
            try:
                _work(session, shares, number, first, its)
            except KeyboardInterrupt:
                os._exit(1)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            # What the parent has registered for its exit is not ours to do.
            os._exit(0)
        its.close()

    def hear(self) -> bool:
        """Takes a message; False if there is none, since the process has ended."""
        config = self._session.config
        try:
            kind, data = self.pipe.recv()
        except EOFError:
            return False
        if kind == "begun":
            self._now, self.later = data
        elif kind == "report":
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            config.hook.pytest_runtest_logreport(report=report)
        elif kind == "done":
            self._finish()
        else:
            self.has_ended = True
        return not self.has_ended

    def join(self) -> None:
        """Waits for its end; the test that has ended it has failed.

        Raises:
            RuntimeError: it ended before or after a test.
        """
        self.pipe.close()
        _, status = os.waitpid(self._pid, 0)
        if self.has_ended:
            return
        words = f"the process ended with {os.waitstatus_to_exitcode(status)}"
        if self._now is None:
            raise RuntimeError(f"{words}, but not in a test")
        item = self._session.items[self._now]
        report = pytest.TestReport(
            nodeid=item.nodeid, location=item.location, keywords={}, outcome="failed", longrepr=words, when="call"
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        self._finish()

    def end(self) -> None:
        """Interrupts it, so that its fixtures end, too; kills it if that takes long."""
        os.kill(self._pid, signal.SIGINT)
        give_up = time.monotonic() + 10.0
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > give_up:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.05)

    def _finish(self) -> None:
        assert self._now is not None
        item, self._now = self._session.items[self._now], None
        self._session.config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def run_forked(session: pytest.Session, num_processes: int) -> None:
    """Runs the collected tests.

    Raises:
        pytest.Session.Failed: as many tests have failed as the command line allows.
    """
    config = session.config
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    reporter.showfspath = False  # tests of several files run at a time
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    shares = Shares(len(session.items), num_processes)
    running = [Running(session, shares, number) for number in range(num_processes)]
    try:
        while running:
            for pipe in wait([one.pipe for one in running]):
                (process,) = (one for one in running if one.pipe is pipe)
                if not process.hear():
                    running.remove(process)
                    process.join()
                    if not process.has_ended:
                        running.append(Running(session, shares, process.number, process.later))
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
    finally:
        for process in running:
            process.end()


def _work(session: pytest.Session, shares: Shares, number: int, first: int | None, pipe: Connection) -> None:
    """The forked process: runs tests until all are taken."""
    config, items = session.config, session.items
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()  # in files of its own
    config._tmp_path_factory._basetemp /= f"fork{number}"  # type: ignore[attr-defined]
    config._tmp_path_factory._basetemp.mkdir(exist_ok=True)  # type: ignore[attr-defined]
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Reports(config, pipe))
    now = shares.take(number) if first is None else first
    try:
        while now is not None:
            later = shares.take(number)
            pipe.send(("begun", (now, later)))
            config.hook.pytest_runtest_protocol(item=items[now], nextitem=None if later is None else items[later])
            pipe.send(("done", None))
            now = later
    finally:
        session._setupstate.teardown_exact(None)
        util._run_finalizers()  # semaphores are removed
    pipe.send(("ended", None))


class _Reports:
    """Sends the reports of a process to its parent."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config, self._pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("report", data))
