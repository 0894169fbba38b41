"""The schedule."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.extend import LaunchOpSchedule, axis, log2

AXES = {"threads": (64, 128)}


@dataclass(frozen=True, kw_only=True)
class TallySchedule(LaunchOpSchedule, kind="tally"):
    """Threads per CTA."""

    threads: int = axis(128, values=AXES["threads"], features=log2)

    def __str__(self) -> str:
        return f"{self.threads} threads"
