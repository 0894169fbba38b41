"""Processes that start at once, because they are forked from one that has done all imports. They can be killed like any
other process.

Importing a server takes seconds, and tests start many. What they spawn in turn, such as processes that search, is
forked in the same way. Commands started as a user starts them are tested with the wheel, the demo and the commands of a
cluster.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable, Iterable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.support.kept_tilings import FOLDER, kept
from tests.support.migrated import copied
from tuner import processes

#: Modules that they use, imported once in advance as far as possible.
_IMPORTED = [
    "tuner.server.app",
    "tuner.cli",
    "tuner.dispatch.cluster.join",
    "uvicorn.protocols.http.h11_impl",
    "tests.service.service.victim",
    "tests.soak.member",
    "tests.support.warmed",
]
_CONTEXT = multiprocessing.get_context("forkserver")
#: This process's connection to the fork server, whose fields Python does not document.
_SERVER: Any = forkserver._forkserver
_CONTEXT.set_forkserver_preload(_IMPORTED)
#: Maximum time until a process prints its first line; the first process does the imports.
_LIMIT_S = 120.0


class Forked:
    """One process: its output and its end."""

    def __init__(
        self,
        main: Callable[[list[str]], None],
        *arguments: str,
        log: Path,
        spawns: bool = False,
        **environment: str,
    ) -> None:
        """Its log is appended to `log`, and its output goes to a file in the same folder. Its environment and working
        directory are those of this process, with the changes in `environment`. With `spawns`, its processes are its
        children and start as a user's."""
        self._log, self._out = log, log.parent / f"{time.monotonic_ns()}.out"
        _connect()
        where = os.getcwd(), str(self._out), str(log)
        address = None if spawns else _SERVER._forkserver_address
        self._process = _CONTEXT.Process(
            target=_run, args=(main, list(arguments), where, {**os.environ, **environment}, address), daemon=False
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def printed(self) -> str:
        """All its output."""
        return self._out.read_text() if self._out.exists() else ""

    def line(self) -> str:
        """Its first line of output."""
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end and self._process.is_alive():
            if (text := self.printed).endswith("\n"):
                return text.splitlines()[0]
            time.sleep(0.02)
        raise AssertionError(f"no line: {self._log.read_text()[-2000:] if self._log.exists() else ''}")

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits for the process to end; returns its exit status.

        Raises:
            TimeoutError: it has not ended.
        """
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s")
        return self._process.exitcode

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end; does nothing if it has ended."""
        self._process.kill()
        self.wait()


def command(arguments: list[str]) -> None:
    """Runs `tuner` with `arguments`."""
    from tuner.cli import main

    main(arguments)


def _connect() -> None:
    """Connects to the fork server that another process of this run has started, or starts one: its imports take six
    seconds of processor time. The socket is removed when the process that started it ends."""
    server, folder = _SERVER, os.environ.get(FOLDER)
    if folder is None or server._forkserver_pid is not None:
        forkserver.ensure_running()
    elif server._forkserver_address is None or not Path(server._forkserver_address).exists():
        with (Path(folder) / "fork-server").open("a+") as known:
            fcntl.flock(known, fcntl.LOCK_EX)
            known.seek(0)
            if (found := _opened(known.read())) is None:
                server._forkserver_address = server._forkserver_alive_fd = None
                vars(server).pop("ensure_running", None)
                forkserver.ensure_running()
                known.truncate(0)
                known.write(f"{server._forkserver_address} /proc/{os.getpid()}/fd/{server._forkserver_alive_fd}")
            else:
                server._forkserver_address, server._forkserver_alive_fd = found
                server.ensure_running = lambda: None


def _opened(said: str) -> tuple[str, int] | None:
    """The address of a fork server, and the pipe that keeps it alive, if there still is one."""
    address, _, pipe = said.partition(" ")
    if not address or not Path(address).exists():
        return None
    try:
        return address, os.open(pipe, os.O_WRONLY)
    except FileNotFoundError:
        return None


def _run(
    main: Callable[[list[str]], None],
    arguments: list[str],
    where: tuple[str, str, str],
    environment: dict[str, str],
    address: str | None,
) -> None:
    # Its children would import the main module of this one's parent.
    sys.modules["__main__"] = types.ModuleType("__main__")
    _settle(where, environment)

    def fork(process: Any) -> Any:
        process._args = (process._target, process._args, where, dict(os.environ))
        process._target = _as_child
        return ForkServerProcess._Popen(process)

    if address is not None:
        # A process of a fork server knows it by an inherited descriptor, but not by its address.
        _SERVER._forkserver_address = address
        _SERVER.ensure_running = lambda: None
        processes._Process._Popen = staticmethod(fork)
    with copied(), kept():
        main(arguments)


def _as_child(
    target: Callable[..., None], arguments: Iterable[Any], where: tuple[str, str, str], environment: dict[str, str]
) -> None:
    """What a process of ours spawns, with the environment and the outputs of its parent."""
    _settle(where, environment)
    with kept():
        target(*arguments)


def _settle(where: tuple[str, str, str], environment: dict[str, str]) -> None:
    folder, *outputs = where
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
