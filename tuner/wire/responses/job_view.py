"""A job in responses."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Self

from pydantic import Field

from tuner.core.trial.job import CacheState, JobState, PriorsChoice, Regime
from tuner.core.trial.records import JobRecord
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View, is_simulated, moment
from tuner.wire.requests.pairs import AnyKept, pair_of


class ObjectiveView(View):
    """What "fast" means for the job."""

    l2: CacheState
    regime: Regime
    energy_within_percent: float | None = Field(
        description=(
            "the result is the kernel with the least energy among those at most this much slower than "
            "the fastest; null if only time counts"
        )
    )
    torch_compile: bool = Field(
        description="whether the finals use the faster of the vendor's library and torch.compile as the library"
    )


class BudgetView(View):
    """When the search stops."""

    trials: int
    seconds: float
    patience: int | None = Field(
        description=("the search stops after this many trials without progress; null for no limit")
    )


#: Fields of a job that are copied under their own names.
_COPIED = (
    "id",
    "state",
    "reason",
    "num_trials",
    "num_measured",
    "num_rejected",
    "num_failed",
    "best_us",
    "library_us",
    "best_speedup",
    "search_s",
    "card_share",
    "since_progress",
    "owners",
    "priority",
    "project",
    "labels",
    "is_paused",
)


class JobView(View):
    """A job and its state."""

    id: str
    state: JobState
    reason: str = Field(description="why it failed, or why an open job waits; empty otherwise")
    workload: str = Field(description="the pair in one line")
    pair: AnyKept
    target: str
    simulated: bool = Field(description="whether its figures are simulated")
    objective: ObjectiveView
    budget: BudgetView
    seed: int
    priors: PriorsChoice = Field(description="the choice of priors")
    num_given: int = Field(
        description="number of schedules that it tries besides the library, without a search; 0 for a search"
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    num_trials: int
    num_measured: int
    num_rejected: int
    num_failed: int
    best_us: float | None = Field(
        description=(
            "time of the fastest generated kernel so far, by its speed-up, "
            "microseconds; from the finals once it has succeeded"
        )
    )
    library_us: float | None = Field(
        description="the library's time so far, microseconds; from the finals once the job has succeeded"
    )
    best_speedup: float | None = Field(
        description=(
            "the library's time divided by that of the fastest generated kernel: the median over the rounds in which "
            "both were timed, so it may differ slightly from the ratio of the two times"
        )
    )
    search_s: float = Field(description="seconds of search spent, over all restarts")
    eta_s: float | None = Field(
        description=(
            "maximum seconds of search left, by budget and deadline; null before the first trial, and after the search"
        )
    )
    card_share: float | None = Field(
        description="share of the search time for which the card was busy with trials; null if unknown"
    )
    since_progress: int = Field(
        description=("trials recorded since the last one that was at least half a percent faster")
    )
    owners: tuple[str, ...] = Field(
        description="who requested it and shares its run; empty if the service had no tokens"
    )
    priority: int
    project: str
    labels: tuple[str, ...]
    deadline_at: datetime | None = Field(description="when its search must end; null for no deadline")
    is_paused: bool = Field(description="whether an owner has paused it")
    links: dict[str, Link] = Field(description="paths of resources of the job")

    @classmethod
    def of(cls, job: JobRecord) -> Self:
        """Copies `job`."""
        spec, path = job.spec, f"/jobs/{job.id}"
        return cls(
            workload=spec.workload.describe(),
            pair=pair_of(spec.workload),
            target=spec.target_id,
            simulated=is_simulated(spec.target_id),
            objective=ObjectiveView(
                l2=spec.objective.l2,
                regime=spec.objective.regime,
                energy_within_percent=spec.energy_within_percent,
                torch_compile=spec.torch_compile,
            ),
            budget=BudgetView.model_validate(spec.budget),
            seed=spec.seed,
            priors=spec.priors,
            num_given=len(spec.tried),
            deadline_at=None if job.deadline_at is None else moment(job.deadline_at),
            created_at=moment(job.created_at),
            started_at=None if job.started_at is None else moment(job.started_at),
            finished_at=None if job.finished_at is None else moment(job.finished_at),
            eta_s=job.eta_s(time.time()),
            **{name: getattr(job, name) for name in _COPIED},
            links={
                "self": path,
                **{name: f"{path}/{name}" for name in ("trials", "events", "best")},
                "page": f"/ui{path}",
            },
        )
