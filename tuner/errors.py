"""The exception tree. Each message is a sentence that a user can read, and names the remedy where there is one.

TunerError
├── InvalidInput        a request's field is wrong (HTTP 422)
├── NotFound            what was named does not exist (HTTP 404)
├── Conflict            the state of a thing forbids the request (HTTP 409)
├── Forbidden           the asker may not do that (HTTP 403)
├── IllegalSchedule     the statement of legality (`tuner.core.space.space`) refuses a schedule
├── PlanError           `tuner.core.proof.verify` refuses a plan, with a witness
│   ├── WordError       a word of the table is out of its range
│   ├── CoverageError   a tile is missing or doubled
│   ├── SafetyError     a read can precede the write that it needs
│   ├── LivenessError   a wait that never ends
│   └── ResourceError   more than the GPU has
├── StoreError          the database cannot be used
│   └── StoreUnavailable  it cannot be used now: it is locked, or the disk is full (HTTP 503)
├── SearchLost          the process of a search is gone; the job continues from its recorded trials
└── WorkerError         a worker could not be started, or is gone
    ├── BuildError      a kernel did not compile
    ├── Unbelievable    what a worker says cannot be
    └── Quarantined     a card is not fit to measure on; it is probed again
"""

from __future__ import annotations


class TunerError(Exception):
    """The root: everything that this project raises on purpose."""


class InvalidInput(TunerError):
    """A field of the input is wrong.

    Args:
        field: dotted path of the field, e.g. ``pair.m``.
        problem: what is wrong, e.g. ``must be at least 1, got 0``.
        remedy: what would be right, e.g. ``give the number of rows of X``.
    """

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, str, str]]:
        return type(self), (self.field, self.problem, self.remedy)


class NotFound(TunerError):
    """What was named does not exist."""


class Conflict(TunerError):
    """The present state of a thing forbids what was asked."""


class Forbidden(TunerError):
    """Whoever asks may not do that; the message says who may."""


class IllegalSchedule(TunerError):
    """A schedule is outside the legal space; the message says why."""


class PlanError(TunerError):
    """A plan is refused; `witness` is the evidence, a sentence that names tasks and signals."""

    def __init__(self, problem: str, witness: str) -> None:
        super().__init__(f"{problem}: {witness}")
        self.problem = problem
        self.witness = witness

    def __reduce__(self) -> tuple[type[PlanError], tuple[str, str]]:
        return type(self), (self.problem, self.witness)


class WordError(PlanError):
    """The table is no plan: a word is out of the range in which the device's 32-bit arithmetic holds."""


class CoverageError(PlanError):
    """A tile of the tile graph is computed never, or more than once."""


class SafetyError(PlanError):
    """A task can start before a task whose output it reads has posted."""


class LivenessError(PlanError):
    """A task waits for something that never comes; of a circle of waits, `cycle` has each task, and why it waits."""

    def __init__(self, problem: str, witness: str, cycle: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(problem, witness)
        self.cycle = cycle

    def __reduce__(self) -> tuple[type[LivenessError], tuple[str, str, tuple[tuple[str, str], ...]]]:  # type: ignore[override]  # with its cycle
        return type(self), (self.problem, self.witness, self.cycle)


class ResourceError(PlanError):
    """The plan needs more than the GPU has: co-resident CTAs, shared memory, registers, index range."""


class StoreError(TunerError):
    """The database cannot be opened or used; the message names the path and the remedy."""


class StoreUnavailable(StoreError):
    """The database cannot be read or written now, and nothing was changed: the same may be tried again later."""


class SearchLost(TunerError):
    """The process that chose a job's candidates is gone; another one continues from the recorded trials."""


class WorkerError(TunerError):
    """A worker could not be started, or is gone."""


class BuildError(WorkerError):
    """A kernel did not compile; the message carries the compiler's log."""


class Unbelievable(WorkerError):
    """What a worker says cannot be; the message names the figure and its range."""


class Quarantined(WorkerError):
    """A card is not fit to measure on, or another process keeps it: what waits for it continues waiting."""
