"""Finds and loads libcupti, and calls it: the status of every call is checked and translated into a sentence."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tuner.errors import WorkerError

from .structs import CALLS

#: CUDA major versions whose CUPTI has the calls.
_MAJORS = (13, 12)
#: CUptiResult -> its meaning for the user who requested counters. Source: cupti_result.h.
_SENTENCES = {
    14: "the driver is too old for this CUPTI",
    26: "another profiler uses the GPU's counters",
    27: "the driver or the GPU does not support profiling",
    33: "a virtual GPU forbids profiling",
    35: (
        "the driver does not allow this user to read the GPU's counters (allow it with the driver "
        "option NVreg_RestrictProfilingToAdminUsers=0, or grant CAP_SYS_ADMIN)"
    ),
    40: "the virtual GPU's host forbids profiling",
    41: "confidential computing forbids profiling",
    42: "this GPU model does not support profiling",
    43: "this slice of a GPU (MIG) forbids profiling",
    44: "linked GPUs (SLI) forbid profiling",
    45: "WSL forbids profiling",
    46: "this CUPTI is too old for the GPU",
}


class CuptiError(WorkerError):
    """A call failed, or the library cannot be loaded; the message is a sentence."""


class Cupti:
    """The loaded library."""

    def __init__(self, folder: Path, soname: str) -> None:
        """Loads it from `folder`.

        Raises:
            CuptiError: it cannot be loaded.
        """
        try:
            # libcupti opens libnvperf_host by its bare name, so the loader finds the one that is already loaded.
            self._host = ctypes.CDLL(str(folder / "libnvperf_host.so"), mode=ctypes.RTLD_GLOBAL)
            self._lib = ctypes.CDLL(str(folder / soname))
        except OSError as error:
            raise CuptiError(f"CUPTI cannot be loaded: {error}") from error
        missing = [name for name in CALLS if not hasattr(self._lib, name)]
        if missing:
            raise CuptiError(f"the CUPTI in {folder} is too old: it has no {missing[0]}; 12.8 or later is needed")
        self._initialized = False

    def call(self, function: str, **fields: Any) -> Any:
        """Calls `function` with these fields; returns the structure after the call.

        Raises:
            CuptiError: it failed.
        """
        params = CALLS[function].make(**fields)
        status = getattr(self._lib, function)(ctypes.byref(params))
        if status:
            raise CuptiError(_SENTENCES.get(status) or f"{function} failed with {self._status_name(status)}")
        return params

    def initialize(self) -> None:
        """Required before all calls of the device half; once per process.

        Raises:
            CuptiError: there is no driver, or it does not support this CUPTI.
        """
        if not self._initialized:
            self.call("cuptiProfilerInitialize")
            self._initialized = True

    def _status_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._lib.cuptiGetResultString(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"status {status}"


@cache
def load_cupti() -> Cupti:
    """CUPTI from the installed CUDA packages, otherwise from a toolkit; loaded once per process.

    Raises:
        CuptiError: there is none, or it cannot be loaded.
    """
    for major in _majors():
        for folder in _folders(major):
            if (folder / f"libcupti.so.{major}").exists() and (folder / "libnvperf_host.so").exists():
                return Cupti(folder, f"libcupti.so.{major}")
    raise CuptiError("CUPTI is not installed: pip install nvidia-cuda-cupti")


def _majors() -> list[int]:
    """The major versions to look for, that of cuda-bindings first: a process uses one."""
    try:
        installed = int(metadata.version("cuda-bindings").split(".")[0])
    except metadata.PackageNotFoundError:
        installed = _MAJORS[0]
    return sorted(_MAJORS, key=lambda major: major != installed)


def _folders(major: int) -> Iterator[Path]:
    """Where NVIDIA's wheels put the library, then where toolkits do."""
    for entry in filter(None, sys.path):
        yield Path(entry, "nvidia", f"cu{major}", "lib")
        yield Path(entry, "nvidia", "cuda_cupti", "lib")
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), f"/usr/local/cuda-{major}", "/usr/local/cuda"]
    for root in filter(None, roots):
        yield Path(root, "extras", "CUPTI", "lib64")
        yield Path(root, "lib64")
