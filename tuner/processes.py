"""Processes that are spawned: they do not import the program's main module again, and Ctrl-C is not for them.

`multiprocessing` has each spawned process import the main module first, since what it is to run may be there. What our
processes run is in this package. The main module may be a user's script, which imports PyTorch: in each of twenty
processes that would take seconds and half a gigabyte. And a script that tunes when it is imported would tune again.
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

#: Keys that describe the main module to a new process. A process without them does not import it.
_OF_MAIN = ("init_main_from_name", "init_main_from_path")

_here = threading.local()
_prepared = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """The preparation data of a starting process; one of ours gets nothing about the main module."""
    data: dict[str, Any] = _prepared(name)
    if getattr(_here, "starts_ours", False):
        for key in _OF_MAIN:
            data.pop(key, None)
    return data


# The one place at which the standard library decides it (docs/adr/README.md).
# Whoever else starts processes in this program is not affected.
spawn.get_preparation_data = _preparation_data


@contextmanager
def _starts_ours() -> Iterator[None]:
    """What this thread starts in the block is one of ours."""
    _here.starts_ours = True
    try:
        yield
    finally:
        _here.starts_ours = False


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What this thread starts in the block takes no SIGINT. A terminal sends it to the children, too, and one that
    still imports could not ignore it yet: it would end with a traceback."""
    resource_tracker.ensure_running()  # the first spawn would start it, and that unblocks the signal
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


#: In place of `multiprocessing.get_context("spawn")`.
SPAWN = _Context()
