"""The schedule."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.extend import LaunchOpSchedule, axis, log2

AXES = {"threads": (64, 128), "blocks": (1, 2, 4)}


@dataclass(frozen=True, kw_only=True)
class AbsmaxSchedule(LaunchOpSchedule, kind="absmax"):
    """Threads per CTA, and CTAs that compute the maximum of a row."""

    threads: int = axis(128, values=AXES["threads"], features=log2)
    blocks: int = axis(1, values=AXES["blocks"], features=log2)

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.blocks} blocks a row"
