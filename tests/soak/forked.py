"""Processes that are there at once: forked from one that has done all imports. A kill ends them like any other."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

#: What they import, so that it need not be done for each.
_IMPORTED = ["tests.soak.programs", "tests.soak.member", "tuner.app", "uvicorn.protocols.http.h11_impl"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_IMPORTED)
#: Longest that one may take to say its first line.
_LIMIT_S = 60.0


class Forked:
    """One process: its first line on stdout, and its end."""

    def __init__(self, main: Callable[[list[str]], None], *arguments: str, folder: Path, **environment: str) -> None:
        """`folder` takes what it prints, and what it logs."""
        self._out = folder / f"{time.monotonic_ns()}.out"
        outputs = str(self._out), str(folder / "log")
        self._process = _CONTEXT.Process(target=_run, args=(main, list(arguments), outputs, environment))
        self._process.start()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def line(self) -> str:
        """What it prints first."""
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end and self._process.is_alive():
            if self._out.exists() and (text := self._out.read_text()).endswith("\n"):
                return text.splitlines()[0]
            time.sleep(0.02)
        raise AssertionError(f"no line: {(self._out.parent / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, and its end waited for."""
        self._process.kill()
        self._process.join(20)
        self._process.close()


def command(arguments: list[str]) -> None:
    """`tuner` with these arguments."""
    from tuner.cli import main

    main(arguments)


def _run(
    main: Callable[[list[str]], None], arguments: list[str], outputs: tuple[str, str], environment: dict[str, str]
) -> None:
    # Its own children would import what this one's parent was started with.
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(environment)
    for stream, path in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    main(arguments)
