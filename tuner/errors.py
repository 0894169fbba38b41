"""The exception tree. Each message is a sentence for users, with a remedy if there is one.

TunerError
├── InvalidInput        a field of a request is wrong (HTTP 422)
├── NotFound            the named object does not exist (HTTP 404)
├── Conflict            the object's state does not allow the request (HTTP 409)
├── Forbidden           the caller may not do that (HTTP 403)
├── IllegalSchedule     a schedule is not legal (`tuner.core.space.space`)
├── PlanError           `tuner.core.proof.verify` refuses a plan, with a witness
│   ├── WordError       a word of the table is out of range
│   ├── CoverageError   a tile is computed never, or twice
│   ├── SafetyError     a read can precede the write that it needs
│   ├── LivenessError   a wait can never end
│   └── ResourceError   it needs more than the GPU has
├── StoreError          the database cannot be used
│   └── StoreUnavailable  temporarily: it is locked, or the disk is full (HTTP 503)
├── SearchLost          the process of a search has died; the job continues from its recorded trials
└── WorkerError         a worker could not be started, or has died
    ├── BuildError      a kernel did not compile
    ├── Unbelievable    data from a worker is impossible
    └── Quarantined     a card cannot be measured on; it is probed again
"""

from __future__ import annotations


class TunerError(Exception):
    """The base class of all exceptions that this project raises on purpose."""


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
    """The named object does not exist."""


class Conflict(TunerError):
    """The object's current state does not allow the request."""


class Forbidden(TunerError):
    """The caller may not do that; the message says who may."""


class IllegalSchedule(TunerError):
    """A schedule is outside the legal space; the message has the reason."""


class PlanError(TunerError):
    """A plan is refused; `witness` is the evidence, a sentence about tasks and signals."""

    def __init__(self, problem: str, witness: str) -> None:
        super().__init__(f"{problem}: {witness}")
        self.problem = problem
        self.witness = witness

    def __reduce__(self) -> tuple[type[PlanError], tuple[str, str]]:
        return type(self), (self.problem, self.witness)


class WordError(PlanError):
    """The table is not a plan: a word is out of the range for which the device's 32-bit arithmetic is correct."""


class CoverageError(PlanError):
    """A tile of the tile graph is computed never, or more than once."""


class SafetyError(PlanError):
    """A task can start before a task whose output it reads has posted."""


class LivenessError(PlanError):
    """A task waits forever; for a cycle of waits, `cycle` has each task with the reason for its wait."""

    def __init__(self, problem: str, witness: str, cycle: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(problem, witness)
        self.cycle = cycle

    def __reduce__(self) -> tuple[type[LivenessError], tuple[str, str, tuple[tuple[str, str], ...]]]:  # type: ignore[override]  # with its cycle
        return type(self), (self.problem, self.witness, self.cycle)


class ResourceError(PlanError):
    """The plan needs more than the GPU has: co-resident CTAs, shared memory, registers, index range."""


class StoreError(TunerError):
    """The database cannot be opened or used; the message has the path and the remedy."""


class StoreUnavailable(StoreError):
    """The database cannot be read or written now, and nothing was changed; the operation may be retried later."""


class SearchLost(TunerError):
    """The process that chose a job's candidates has died; another one continues from the recorded trials."""


class WorkerError(TunerError):
    """A worker could not be started, or has died."""


class BuildError(WorkerError):
    """A kernel did not compile; the message has the compiler's log."""


class Unbelievable(WorkerError):
    """Data from a worker is impossible; the message has the figure and its range."""


class Quarantined(WorkerError):
    """A card cannot be measured on, or another process occupies it; calls for it keep waiting."""
