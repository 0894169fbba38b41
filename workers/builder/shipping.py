"""A kernel that was prepared on one machine and is measured on another: what travels, and how it is taken in.

The build travels. The proof does not: whoever measures proves the candidate again, which takes milliseconds, so that no
plan is run that this machine has not proven.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Prepared
from tuner.errors import WorkerError

from .nvrtc import Built, keep_build
from .prepare import PreparedKernel

_KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ShippedKernel(Prepared):
    """A candidate and its build."""

    candidate: Candidate
    #: Both are empty for the library.
    source: str
    built: Built | None


def ship(candidate: Candidate, prepared: PreparedKernel) -> ShippedKernel:
    """What another machine needs of `prepared`."""
    return ShippedKernel(
        candidate=candidate,
        source=prepared.source,
        built=prepared.built,
        stage_s=dict(prepared.stage_s),
        forecast_us=prepared.forecast_us,
    )


def adopt(shipped: ShippedKernel, build_cache: Path) -> None:
    """Puts the build where this machine's builder finds it. It does where its compiler is of the same version; else it
    builds once more.

    Raises:
        WorkerError: what came is no build.
    """
    if shipped.built is not None:
        if not _KEY.fullmatch(shipped.built.key):  # it names files
            raise WorkerError("a build came whose key is no sha256")
        keep_build(build_cache, shipped.built, shipped.source)
