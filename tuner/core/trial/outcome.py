"""The result of a candidate: an outcome is a value, and failure is never represented by infinity."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tuner.core.problem.objective import Procedure
from tuner.core.trial.samples import Round, kept


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One named figure of a trial."""

    #: Stable name, e.g. ``registers_per_thread``.
    tag: str
    #: e.g. ``bytes``; empty for a plain number.
    unit: str
    value: float


class Stage(StrEnum):
    """Where a trial ended."""

    VERIFY = "verify"
    RENDER = "render"
    BUILD = "build"
    LAUNCH = "launch"
    CHECK = "check"
    TIME = "time"


class FailureKind(StrEnum):
    """Why a candidate that should have worked did not."""

    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    WRONG_NUMBERS = "wrong_numbers"
    #: The bounded spin expired, or the deadline passed.
    HANG = "hang"
    #: The kernel accessed invalid memory.
    ILLEGAL_ADDRESS = "illegal_address"
    #: The kernel read or wrote an address that is not aligned to what it moved.
    MISALIGNED_ADDRESS = "misaligned_address"
    #: An assertion in the kernel failed.
    DEVICE_ASSERT = "device_assert"
    #: The kernel wrote outside its outputs: past a buffer, or into its inputs.
    OVERWRITE = "overwrite"
    #: The child died, or its CUDA context became unusable in another way.
    CRASH = "crash"
    OUT_OF_MEMORY = "out_of_memory"
    #: A fault of this program, not of the candidate.
    INTERNAL = "internal"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The candidate's results were correct, and this is its time."""

    #: Median time of one run over the rounds that count (a chain's divided by its length), microseconds.
    time_us: float
    #: Median time of the library in the same rounds, microseconds; equals time_us for the library itself.
    library_us: float
    #: Median over rounds of library time / this time: above 1 is faster than the library.
    speedup: float
    #: Half the interquartile range divided by the median of the samples.
    spread: float
    #: Raw samples of every round, including dropped ones; empty once they have been removed from the disk.
    rounds: tuple[Round, ...]
    #: ||out - reference|| / ||reference|| of the final outputs, the worst over the seeds.
    rel_error: float
    #: Resources and other figures.
    metrics: tuple[Metric, ...] = ()
    #: Seconds spent by stage: verify, render, build, check, time, ...
    stage_s: dict[str, float] = field(default_factory=dict)
    #: How the time was measured; None in trials of versions that did not record it.
    procedure: Procedure | None = None
    #: Whether its rounds ended early, since it was certainly worse than the best so far: its time is only approximate.
    truncated: bool = False
    #: What limits the quality of the figures, e.g. too many dropped rounds; empty otherwise.
    remark: str = ""

    @property
    def samples_us(self) -> tuple[float, ...]:
        """The candidate's times in the rounds that count, microseconds."""
        return tuple(one.time_us for one in kept(self.rounds))


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """Refused before it ran, with the reason: not an error."""

    stage: Stage
    reason: str
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The candidate should have worked, but did not."""

    stage: Stage
    kind: FailureKind
    reason: str
    stage_s: dict[str, float] = field(default_factory=dict)


Outcome = Measured | Rejected | Failed
