"""Spawned processes: they do not import the program's main module again, and ignore Ctrl-C.

With `multiprocessing`, each spawned process first imports the main module, which may define the function to run. Our
functions are in this package. The main module may be a user's script that imports PyTorch, which would take seconds and
half a gigabyte in each of twenty processes; and a script that tunes on import would tune again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

#: Keys that describe the main module to a new process, which does not import the module if they are missing.
_OF_MAIN = ("init_main_from_name", "init_main_from_path")

_here = threading.local()
_prepared = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """The preparation data of a new process; for ours, without the main module."""
    data: dict[str, Any] = _prepared(name)
    if getattr(_here, "starts_ours", False):
        for key in _OF_MAIN:
            data.pop(key, None)
    return data


# The standard library decides only here what a new process imports (docs/adr/README.md). Other code in this program
# that starts processes is not affected.
spawn.get_preparation_data = _preparation_data


@contextmanager
def _starts_ours() -> Iterator[None]:
    """Marks the processes that this thread starts in the block as ours."""
    _here.starts_ours = True
    try:
        yield
    finally:
        _here.starts_ours = False


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Makes the processes that this thread starts in the block ignore SIGINT. A terminal sends it to children, too, and
    a child that is still importing could not ignore it yet: it would end with a traceback."""
    resource_tracker.ensure_running()  # otherwise the first spawn would start it, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 - multiprocessing calls it so
        with _starts_ours(), _deaf_to_ctrl_c():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


#: Used instead of `multiprocessing.get_context("spawn")`.
SPAWN = _Context()
