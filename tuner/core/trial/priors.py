"""What earlier searches found, and what of it a job begins with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Outcome

#: Rows below this count little: each weight is read once whatever they are, and one tile has them all. An octave there
#: is so much of one above.
FEW_ROWS, FEW_ROWS_OCTAVE = 16, 0.25


def octaves_of(rows: int) -> float:
    """Where this many rows stand on the scale by which shapes are neighbours: octaves above `FEW_ROWS`."""
    octaves = math.log2(rows / FEW_ROWS)
    return octaves if octaves >= 0 else FEW_ROWS_OCTAVE * octaves


@dataclass(frozen=True, kw_only=True)
class Found:
    """One of the best candidates of an earlier search."""

    #: What was asked.
    workload: Workload
    objective: Objective
    #: One of ours.
    candidate: Candidate
    #: Its time there, microseconds, and the library's over it.
    time_us: float
    speedup: float
    #: Where it is kept: a job's id, ``shipped`` and the name of a row, or ``imported`` and what was its job elsewhere.
    source: str
    #: Digest of the kernel sources that were measured; empty where it is not known.
    kernel_version: str = ""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A candidate that a job tries early, since an earlier search found it for this shape or one like it. It is no
    result: the job measures it as it measures every other."""

    #: Legal for the job.
    candidate: Candidate
    #: As in `Found`.
    source: str
    #: What it was found for, in one line.
    workload: str
    #: As in `Found`: of what was found, before it was adapted.
    found_us: float
    found_speedup: float
    kernel_version: str
    #: Whether the schedule was changed, so that it suits the job's shape.
    is_adapted: bool


@dataclass(frozen=True, kw_only=True)
class PriorUse:
    """A prior, and what came of it in its job."""

    prior: Prior
    #: The trial that tried it, and its outcome; None before.
    trial_number: int | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, kw_only=True)
class KnownFinals:
    """What finals on a card said of a problem, whose winners come with the program."""

    #: Medians, microseconds; PyTorch's is None where it was not timed.
    library_us: float
    torch_us: float | None
    #: Of the winner, or of our fastest where the library won; and which kind that is.
    ours_us: float
    ours: PlanKind
    winner: PlanKind
    #: A `Verdict`.
    verdict: str
    kernel_version: str


class KnownWinners(Protocol):
    """Winners of earlier searches that are kept outside of the database, such as those that came with the program."""

    def of(self, target_id: str) -> Sequence[Found]:
        """Those of a target, in any order; none for one that nobody measured."""
        ...

    def finals(self, target_id: str) -> Mapping[str, KnownFinals]:
        """What finals on a target said, by the `source` of the winners of the same problem."""
        ...
