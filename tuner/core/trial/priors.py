"""Results of earlier searches, and which of them a job starts from."""

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

#: Below `FEW_ROWS`, differences between numbers of rows count little: each weight is read once in any case, and one
#: tile has all rows. An octave there counts as `FEW_ROWS_OCTAVE` of one above.
FEW_ROWS, FEW_ROWS_OCTAVE = 16, 0.25


def octaves_of(rows: int) -> float:
    """The position of `rows` on the scale that defines neighbours: octaves above `FEW_ROWS`."""
    octaves = math.log2(rows / FEW_ROWS)
    return octaves if octaves >= 0 else FEW_ROWS_OCTAVE * octaves


@dataclass(frozen=True, kw_only=True)
class Found:
    """One of the best candidates of an earlier search."""

    #: The workload of that search.
    workload: Workload
    objective: Objective
    #: A generated kernel, not the library.
    candidate: Candidate
    #: Its time in that search, microseconds, and the library's relative to it.
    time_us: float
    speedup: float
    #: Where it is stored: a job's id, ``shipped`` and the name of a row, or ``imported`` and the original job.
    source: str
    #: Digest of the measured kernel sources; empty if unknown.
    kernel_version: str = ""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A candidate that a job tries early, since an earlier search found it for this shape or a similar one. It is
    not a result: the job measures it like every other."""

    #: The candidate, which is legal for the job.
    candidate: Candidate
    #: Same as in `Found`.
    source: str
    #: The workload that it was found for, in one line.
    workload: str
    #: Same as in `Found`, for the candidate before it was adapted.
    found_us: float
    found_speedup: float
    kernel_version: str
    #: Whether the schedule was changed to fit the job's shape.
    is_adapted: bool


@dataclass(frozen=True, kw_only=True)
class PriorUse:
    """A prior, and its result in its job."""

    prior: Prior
    #: The trial that tried it, and its outcome; None before that.
    trial_number: int | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, kw_only=True)
class KnownFinals:
    """The finals on a card for a problem of built-in winners."""

    #: Medians, microseconds; PyTorch's is None if it was not timed.
    library_us: float
    torch_us: float | None
    #: Time of the winner, or of our fastest if the library won; and that one's kind.
    ours_us: float
    ours: PlanKind
    winner: PlanKind
    #: A `Verdict`.
    verdict: str
    kernel_version: str


class KnownWinners(Protocol):
    """Winners of earlier searches that are stored outside of the database, such as the built-in ones."""

    def of(self, target_id: str) -> Sequence[Found]:
        """The finals of a target, in any order; empty if it was not measured."""
        ...

    def finals(self, target_id: str) -> Mapping[str, KnownFinals]:
        """The finals on a target, by the `source` of the winners of the same problem."""
        ...
