"""Processes that are spawned, and do not import the program's main module again.

`multiprocessing` has each spawned process import the main module first, since what it is to run may be there. What our
processes run is in this package. The main module may be a user's script, which imports PyTorch: in each of twenty
processes that would take seconds and half a gigabyte. And a script that tunes when it is imported would tune again.
"""

from __future__ import annotations

import threading
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

#: What a process is told of the main module. A process that is not told of it imports none.
_OF_MAIN = ("init_main_from_name", "init_main_from_path")

_here = threading.local()
_prepared = spawn.get_preparation_data


def _preparation_data(name: str) -> dict[str, Any]:
    """What a process that starts is told: by a thread that starts one of ours, nothing of the main module."""
    data: dict[str, Any] = _prepared(name)
    if getattr(_here, "starts_ours", False):
        for key in _OF_MAIN:
            data.pop(key, None)
    return data


# The one place at which the standard library decides it (docs/adr/0064-our-processes-do-not-import-the-main-module.md).
# Whoever else starts processes in this program is not affected.
spawn.get_preparation_data = _preparation_data


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 - multiprocessing calls it so
        _here.starts_ours = True
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            _here.starts_ours = False


class _Context(SpawnContext):
    Process = _Process


#: In place of `multiprocessing.get_context("spawn")`.
SPAWN = _Context()
