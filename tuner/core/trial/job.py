"""A job, its trials, their states and the legal transitions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Self

from tuner.core.problem.objective import CacheState as CacheState
from tuner.core.problem.objective import Regime as Regime
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.outcome import Outcome
from tuner.errors import Conflict, InvalidInput


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What "fast" means for a job."""

    l2: CacheState = CacheState.COLD
    regime: Regime = Regime.BURST


def default_regime(workload: Workload) -> Regime:
    """Sustained from 256 rows or images on, where runs are power-limited; burst below."""
    return Regime.SUSTAINED if workload.batch_size >= 256 else Regime.BURST


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a search stops: whichever comes first."""

    #: Recorded outcomes, baselines included, >= 1.
    trials: int = 60
    #: Wall-clock seconds of the search, finals not counted, > 0.
    seconds: float = 600.0
    #: Trials without progress after which nothing new is tried, >= 1; None for no limit.
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise InvalidInput("budget.trials", f"must be at least 1, got {self.trials}", "60 is a reasonable value")
        if not self.seconds > 0:
            raise InvalidInput("budget.seconds", f"must be above 0, got {self.seconds}", "600 is a reasonable value")
        if self.patience is not None and self.patience < 1:
            raise InvalidInput(
                "budget.patience", (f"must be at least 1, got {self.patience}"), "30 is a reasonable value"
            )

    def left_s(self, num_trials: int, search_s: float) -> float:
        """Remaining seconds of search, at least one, after `num_trials` trials and `search_s` seconds."""
        left_s, num_left = self.seconds - search_s, self.trials - num_trials
        return max(0.0, min(left_s, num_left * search_s / num_trials))


class PriorsChoice(StrEnum):
    """What a search starts from."""

    #: Results for the nearest shapes on the same GPU model.
    NEAREST = "nearest"
    #: Nothing: a fair search, without earlier results.
    NONE = "none"


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name."""
    return {name: getattr(value, name) for name in _names(type(value))}  # type: ignore[arg-type]  # a class is hashable


@cache
def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A client's complete request."""

    workload: Workload
    #: ``h200`` or ``simulated:h200``.
    target_id: str
    objective: Objective
    budget: Budget
    #: Seed of the sampler, the inputs, and the simulated card's noise.
    seed: int = 0
    #: What the search starts from.
    priors: PriorsChoice = PriorsChoice.NEAREST
    #: The result is the candidate with the least energy among those whose slowdown from the fastest is at most this
    #: percentage, above 0 and at most 100; None for the fastest.
    energy_within_percent: float | None = None
    #: Whether the library of the finals is the faster of the vendor's and torch.compile, if PyTorch is installed where
    #: the card is. That takes longer than a burst search.
    torch_compile: bool = False
    #: What is tried besides the library, in this order, and nothing else; empty for a search.
    tried: tuple[Candidate, ...] = ()

    def __post_init__(self) -> None:
        within = self.energy_within_percent
        if within is not None and not 0 < within <= 100:
            problem = f"must be above 0 and at most 100, got {within:g}"
            raise InvalidInput("objective.energy_within_percent", problem, "5 allows five percent more time")

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse. Later fields are left out while they have their
        defaults, so that digests stay valid."""
        # By hand: `asdict` copies every leaf, which takes a tenth of a submission's time.
        data = {name: _fields(value) if is_dataclass(value) else value for name, value in _fields(self).items()}
        data["workload"]["ops"] = tuple(op.to_job_json() for op in self.workload.ops)
        if self.priors is PriorsChoice.NEAREST:
            del data["priors"]
        if self.budget.patience is None:
            del data["budget"]["patience"]
        if self.energy_within_percent is None:
            del data["energy_within_percent"]
        if not self.torch_compile:
            del data["torch_compile"]
        del data["tried"]
        return data | ({"tried": [one.to_json() for one in self.tried]} if self.tried else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(
            workload=Workload.from_json(data["workload"]),
            target_id=data["target_id"],
            objective=Objective(l2=CacheState(data["objective"]["l2"]), regime=Regime(data["objective"]["regime"])),
            budget=Budget(**data["budget"]),
            seed=data["seed"],
            priors=PriorsChoice(data.get("priors", PriorsChoice.NEAREST)),
            energy_within_percent=data.get("energy_within_percent"),
            torch_compile=data.get("torch_compile", False),
            tried=tuple(map(Candidate.from_json, data.get("tried", ()))),
        )

    @cached_property
    def problem_digest(self) -> str:
        """16 hex digits that identify the open problem: everything except budget and seed."""
        problem = {k: v for k, v in self.to_json().items() if k not in ("budget", "seed")}
        text = json.dumps(problem, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


#: Limits of a job's priority.
MAX_PRIORITY = 10
#: Maximum labels of a job, including those of all its owners.
MAX_LABELS = 16


@dataclass(frozen=True, kw_only=True)
class JobTerms:
    """How a job is treated: not part of its problem."""

    #: -10 to 10; higher priorities go first. Above 0 only for admins.
    priority: int = 0
    #: The project of the job, in its owner's words; may be empty.
    project: str = ""
    #: Words for finding it.
    labels: tuple[str, ...] = ()
    #: Seconds from its submission until its search must end; None for no limit.
    deadline_s: float | None = None
    #: The address that is notified when it ends; None if there is none. Another owner of the same run has a separate
    #: one.
    webhook: str | None = None


class JobState(StrEnum):
    """The state of a job."""

    #: Accepted, not started.
    QUEUED = "queued"
    #: Trials are being run.
    SEARCHING = "searching"
    #: The best of each plan kind are measured again, against each other.
    FINALS = "finals"
    #: A verdict and an artifact exist.
    SUCCEEDED = "succeeded"
    #: It ended without a result; the job's `reason` says why.
    FAILED = "failed"
    #: A client cancelled it; its trials are kept.
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


#: From each state, the states that may follow. A restart resets nothing: an open job continues in its state.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.SEARCHING, JobState.CANCELLED, JobState.FAILED}),
    JobState.SEARCHING: frozenset({JobState.FINALS, JobState.CANCELLED, JobState.FAILED}),
    JobState.FINALS: frozenset({JobState.SUCCEEDED, JobState.CANCELLED, JobState.FAILED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


def check_transition(before: JobState, after: JobState) -> None:
    """Refuses an illegal step.

    Raises:
        Conflict: `after` may not follow `before`.
    """
    if after not in TRANSITIONS[before]:
        raise Conflict(f"a job that is {before} cannot become {after}")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate and its outcome; recorded once, never changed."""

    #: 0, 1, 2, ... within the job.
    number: int
    candidate: Candidate
    outcome: Outcome
    #: How many trials the search knew when it chose the candidate: those with lower numbers. Others were in progress.
    num_known: int
    #: When it was chosen, and when its outcome arrived; seconds since the epoch.
    started_at: float
    finished_at: float
    #: Index of the job's prior that it tried; None if it did not try one.
    prior: int | None = None
