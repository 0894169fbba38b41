"""The schedule of a gather."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.extend import LaunchOpSchedule, axis, log2

THREADS = (64, 128, 256)
ROWS_PER_CTA = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class GatherSchedule(LaunchOpSchedule, kind="gather"):
    """One launch; the threads and the rows of each CTA."""

    threads: int = axis(128, values=THREADS, features=log2)
    rows_per_cta: int = axis(1, values=ROWS_PER_CTA, features=log2)

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.rows_per_cta} rows a CTA"
