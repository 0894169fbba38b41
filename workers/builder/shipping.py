"""A kernel that was prepared on one machine and is measured on another: what travels, and how it is taken in.

The builds travel. The proof does not: whoever measures proves the candidate again, which takes milliseconds, so that no
plan is run that this machine has not proven.
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
    #: None of the library.
    kernels: tuple[BuiltKernel, ...]


def ship(candidate: Candidate, prepared: PreparedKernel) -> ShippedKernel:
    """What another machine needs of `prepared`."""
    return ShippedKernel(
        candidate=candidate,
        kernels=prepared.kernels,
        stage_s=dict(prepared.stage_s),
        forecast_us=prepared.forecast_us,
    )


def adopt(shipped: ShippedKernel, build_cache: Path) -> None:
    """Puts the builds where this machine's builder finds them. It does where its compiler is of the same version; else
    it builds once more.

    Raises:
        WorkerError: what came is no build.
    """
    for kernel in shipped.kernels:
        if not _KEY.fullmatch(kernel.built.key):  # it names files
            raise WorkerError("a build arrived whose key is not a sha256")
        keep_build(build_cache, kernel.built, kernel.source)
