"""Jobs as `benchmarks.search.measure --samples` recorded them: every trial with its rounds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.core.trial.samples import DropReason, Round, speedups, whole
from tuner.core.trial.stats import median
from tuner.workers.timing.rounds import counting


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The jobs of all files."""
    for path in paths:
        with gzip.open(path, "rt") as file:
            yield from map(json.loads, file)


def speedup_of(trial: Mapping[str, Any]) -> float | None:
    """Over the library, by the rounds that the trial's own figures are taken from; None where it was not measured, or
    has a preview alone."""
    if trial["outcome"] != "measured":
        return None
    rounds = [
        Round(time_us=time_us, library_us=library_us, dropped=DropReason(dropped) if dropped else None)
        for time_us, library_us, _, _, dropped in trial["rounds"]
    ]
    return median(speedups(counting(rounds))) if whole(rounds) else None
