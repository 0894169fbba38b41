"""A kernel that is prepared on one machine and measured on another: what is sent, and how it is received.

Only the builds are sent. The measuring machine proves the candidate again, which takes milliseconds, so that no machine
runs a plan that it has not proven itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Prepared
from tuner.errors import WorkerError

from .kernels import BuiltKernel
from .nvrtc import keep_build
from .prepare import PreparedKernel

_KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ShippedKernel(Prepared):
    """A candidate and the builds of its kernels."""

    candidate: Candidate
    #: Empty for the library.
    kernels: tuple[BuiltKernel, ...]


def ship(candidate: Candidate, prepared: PreparedKernel) -> ShippedKernel:
    """The data of `prepared` for another machine."""
    return ShippedKernel(
        candidate=candidate,
        kernels=prepared.kernels,
        stage_s=dict(prepared.stage_s),
        forecast_us=prepared.forecast_us,
    )


def adopt(shipped: ShippedKernel, build_cache: Path) -> None:
    """Stores the builds where this machine's builder finds them. The builder uses them if its compiler has the same
    version; otherwise it builds again.

    Raises:
        WorkerError: the received data is not a build.
    """
    for kernel in shipped.kernels:
        if not _KEY.fullmatch(kernel.built.key):  # the key becomes a file name
            raise WorkerError("a build arrived whose key is not a sha256")
        keep_build(build_cache, kernel.built, kernel.source)
