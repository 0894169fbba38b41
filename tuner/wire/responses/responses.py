"""The service's responses: each model copies one domain value, and says whether figures are simulated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import Field

from tuner.core.insight.verdict_words import verdict_sentence
from tuner.core.model.rates import source_of_rates
from tuner.core.problem.gpu import Target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment, Quarantine
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Metric, Outcome, Rejected, Stage
from tuner.core.trial.records import Best, BestMatch, FinalRow, JobRecord, MatchKind, Verdict, least_energy_row
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View, is_simulated, moment
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.library import LibraryRecipeView
from tuner.wire.responses.samples import FinalsProcedureView, PolicyTimeView, ProcedureView
from tuner.wire.responses.words import candidate_words

T = TypeVar("T")


class CandidateView(View):
    """The candidate of a trial."""

    plan_kind: PlanKind
    schedule: dict[str, Any] | None = Field(description="tiling and ordering; null for the library")
    text: str = Field(description="the schedule in one line; empty for the library")
    words: list[str] = Field(description="the schedule in sentences")

    @classmethod
    def of(cls, candidate: Candidate, workload: Workload) -> Self:
        """Copies `candidate`."""
        return cls(**_candidate_fields(candidate, workload))


@lru_cache(maxsize=4096)
def _candidate_fields(candidate: Candidate, workload: Workload) -> dict[str, Any]:
    """The fields of a `CandidateView`, cached, since pages show the same candidates repeatedly."""
    schedule = candidate.schedule
    return {
        "plan_kind": candidate.plan_kind,
        "schedule": None if schedule is None else schedule.to_json(),
        "text": "" if schedule is None else str(schedule),
        "words": candidate_words(candidate, workload),
    }


class MetricView(View):
    """One named figure."""

    tag: str
    unit: str
    value: float


class MeasuredView(View):
    """The time of a candidate with correct results."""

    kind: Literal["measured"] = "measured"
    time_us: float
    library_us: float
    speedup: float = Field(description="library time divided by this time, median of the rounds")
    spread: float = Field(description="half the interquartile range divided by the median")
    rel_error: float
    samples_us: list[float] = Field(
        description="times of the valid rounds; `samples` has all rounds, with their clocks"
    )
    metrics: list[MetricView] = Field(description="resources, and the results of inspections")
    stage_s: dict[str, float]
    procedure: ProcedureView | None = Field(description="how the time was measured; null in trials of older versions")
    truncated: bool = Field(
        description=("whether its rounds ended early, since it was clearly far slower than the best so far")
    )
    remark: str = Field(description="why the figures are less reliable; empty if they are not")


class RejectedView(View):
    """Refused before it ran, with the reason."""

    kind: Literal["rejected"] = "rejected"
    stage: Stage
    reason: str
    stage_s: dict[str, float]


class FailedView(View):
    """A failure of a candidate that should have worked."""

    kind: Literal["failed"] = "failed"
    stage: Stage
    failure: FailureKind
    reason: str
    stage_s: dict[str, float]


OutcomeView = Annotated[MeasuredView | RejectedView | FailedView, Field(discriminator="kind")]


def outcome_view(outcome: Outcome) -> MeasuredView | RejectedView | FailedView:
    """Copies `outcome`."""
    match outcome:
        case Measured():
            return MeasuredView.model_validate(outcome)
        case Rejected():
            return RejectedView.model_validate(outcome)
        case Failed(stage=stage, kind=kind, reason=reason, stage_s=stage_s):
            return FailedView(stage=stage, failure=kind, reason=reason, stage_s=stage_s)


class TrialView(View):
    """One candidate and its outcome."""

    number: int
    simulated: bool
    candidate: CandidateView
    outcome: OutcomeView
    num_known: int = Field(
        description=("number of trials that the search knew when it chose the candidate: those with lower numbers")
    )
    prior: int | None = Field(description="index in the job's `priors_used` of the prior that it tried; null if none")
    started_at: datetime
    finished_at: datetime

    @classmethod
    def of(cls, trial: Trial, job: JobRecord, figures: Iterable[Metric] = ()) -> Self:
        """Copies `trial`, which belongs to `job`; `figures` of inspections are added to its metrics."""
        if figures and isinstance(trial.outcome, Measured):
            metrics = (*trial.outcome.metrics, *figures)
            trial = replace(trial, outcome=replace(trial.outcome, metrics=metrics))
        return cls(
            number=trial.number,
            simulated=is_simulated(job.spec.target_id),
            candidate=CandidateView.of(trial.candidate, job.spec.workload),
            outcome=outcome_view(trial.outcome),
            num_known=trial.num_known,
            prior=trial.prior,
            started_at=moment(trial.started_at),
            finished_at=moment(trial.finished_at),
        )


class EventView(View):
    """One event of a job: the data of a server-sent event."""

    id: int
    job_id: str
    kind: str = Field(description="`state`, `priors`, `trial` or `best`")
    at: datetime
    data: dict[str, Any]


class EnvironmentView(View):
    """The machine, or the simulator, that figures come from."""

    gpu_name: str
    simulated: bool
    driver: str
    cuda: str
    clocks_mhz: dict[str, int]
    tuner_version: str
    kernel_version: str


class FinalRowView(View):
    """One finalist; a plan kind may have several."""

    candidate: CandidateView
    trial_number: int
    time_us: float | None
    spread: float | None
    speedup: float | None = Field(description="library time divided by this time, median of the rounds")
    speedup_ci95: tuple[float, float] | None
    energy_mj: float | None = Field(description="millijoules of one run under continuous load, of the whole card")
    num_rounds: int = Field(description="valid rounds, over both processes")
    num_dropped: int = Field(description="rounds dropped because of the clocks of one of their samples")
    reason: str = Field(description="why there is no time; empty otherwise")

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """The times at the ends of the speed-up's interval, with the library's time at its median."""
        if self.speedup_ci95 is None or not self.time_us or not self.speedup or not self.candidate.plan_kind.is_ours:
            return None
        library_us = self.time_us * self.speedup
        return library_us / self.speedup_ci95[1], library_us / self.speedup_ci95[0]

    @classmethod
    def of(cls, row: FinalRow, workload: Workload) -> Self:
        """Copies `row`."""
        return cls(
            candidate=CandidateView.of(row.candidate, workload),
            **{name: getattr(row, name) for name in cls.model_fields if name != "candidate"},
        )


class TorchTimeView(View):
    """PyTorch's calls on the same card, in rounds with the library."""

    time_us: float | None = Field(description="median of the rounds; null if there is none")
    winner_speedup: float | None = Field(description="PyTorch's time divided by the winner's")
    library_speedup: float | None = Field(
        description="PyTorch's time divided by that of the vendor's library, median of the rounds"
    )
    num_rounds: int = Field(description="rounds that count")
    reason: str = Field(description="why there is no time; empty otherwise")
    calls: TorchCalls = Field(description="`eager`, or `compiled` for torch.compile, if the job requested it")
    is_library: bool = Field(
        description=("whether it is the library of the finals, since it is faster than the vendor's")
    )

    @classmethod
    def of(cls, best: Best) -> Self | None:
        """Copies PyTorch's time in `best`; None if it was not requested."""
        if best.torch is None:
            return None
        return cls(winner_speedup=best.torch_speedup, is_library=best.torch.is_library, **asdict(best.torch))


class BaselineTimeView(View):
    """A user's own program, timed in rounds with the library and all finalists, after the finals."""

    name: str
    time_us: float | None = Field(description="median of the rounds; null if there is none")
    speedup: float | None = Field(description="library time divided by this time, median of the rounds")
    speedup_ci95: tuple[float, float] | None
    winner_speedup: float | None = Field(description="this time divided by the winner's")
    num_rounds: int = Field(description="rounds that count")
    reason: str = Field(description="why there is no time; empty otherwise")


class ArtifactLink(View):
    """The location of the kernel."""

    digest: str = Field(description="sha256 of the zip, hex")
    href: Link


class BestView(View):
    """The result of a job."""

    job_id: str
    workload: str
    target: str
    simulated: bool
    verdict: Verdict
    sentence: str = Field(description="the verdict as text, with its interval")
    winner: PlanKind
    tie_band: float = Field(description="relative difference below which two times are a tie")
    procedure: FinalsProcedureView | None = Field(description="how the finals were run; null in older results")
    finals: list[FinalRowView]
    winner_row: int = Field(description="index in `finals` of the fastest candidate of the winning kind")
    energy_row: int | None = Field(
        description="index in `finals` of the requested kernel if that is the one with the least energy; else null"
    )
    reference_us: float = Field(description="the data sheet's bound, microseconds")
    artifact: ArtifactLink | None
    environment: EnvironmentView
    policies: list[PolicyTimeView] = Field(description="the time of each policy; empty in older results")
    library: LibraryRecipeView | None = Field(description="how the library was called; null if it is simulated")
    torch: TorchTimeView | None = Field(description="PyTorch's time; null if the server does not measure it")
    baselines: list[BaselineTimeView] = Field(description=("programs passed to `tuner.tune` in the same process"))

    @classmethod
    def of(cls, best: Best, job: JobRecord) -> Self:
        """Copies `best`, the result of `job`."""
        digest, workload, within = best.artifact_digest, job.spec.workload, job.spec.energy_within_percent
        return cls(
            job_id=best.job_id,
            workload=workload.describe(),
            target=job.spec.target_id,
            simulated=is_simulated(job.spec.target_id),
            verdict=best.verdict,
            sentence=verdict_sentence(best, workload),
            winner=best.winner,
            tie_band=best.tie_band,
            procedure=None if best.procedure is None else FinalsProcedureView.model_validate(best.procedure),
            finals=[FinalRowView.of(row, workload) for row in best.finals],
            winner_row=best.winner_row or 0,
            energy_row=None if within is None else least_energy_row(best.finals, within),
            reference_us=best.reference_us,
            artifact=None if digest is None else ArtifactLink(digest=digest, href=f"/artifacts/{digest}"),
            environment=EnvironmentView.model_validate(best.environment),
            policies=[PolicyTimeView.model_validate(one) for one in best.policies],
            library=None if best.library is None else LibraryRecipeView.model_validate(best.library),
            torch=TorchTimeView.of(best),
            baselines=[BaselineTimeView.model_validate(one) for one in best.baselines],
        )


class BestMatchView(View):
    """A result found by workload and target."""

    match: MatchKind
    differences: list[str] = Field(description="the differences, as text; empty for an exact match")
    distance: float = Field(description="distance of its shape: log2 of the ratios of sizes, summed")
    best: BestView
    job: JobView

    @classmethod
    def of(cls, found: BestMatch) -> Self:
        """Copies `found`."""
        return cls(
            match=found.match,
            differences=list(found.differences),
            distance=found.distance,
            best=BestView.of(found.best, found.job),
            job=JobView.of(found.job),
        )


class QuarantineView(View):
    """Why a target cannot be measured on until a probe finds its card usable again."""

    reason: str
    since: datetime

    @classmethod
    def of(cls, quarantine: Quarantine) -> Self:
        """Copies `quarantine`."""
        return cls(reason=quarantine.reason, since=moment(quarantine.since))


class TargetView(View):
    """A GPU for which this server can tune."""

    id: str
    simulated: bool
    gpu: dict[str, Any] = Field(description="properties of the GPU: sizes in bytes, rates per second")
    forecasts: str = Field(description="the basis of forecasts: a fit to trials of such a card, or its data sheet")
    environment: EnvironmentView | None
    quarantine: QuarantineView | None = Field(description="why nothing can be measured there now; null if it can")

    @classmethod
    def of(cls, target: Target, environment: Environment | None, quarantine: Quarantine | None) -> Self:
        """Copies a target, where its figures come from, and its quarantine."""
        return cls(
            id=target.id,
            simulated=target.simulated,
            gpu=asdict(target.gpu),
            forecasts=source_of_rates(target.gpu),
            environment=None if environment is None else EnvironmentView.model_validate(environment),
            quarantine=None if quarantine is None else QuarantineView.of(quarantine),
        )


class PageView(View, Generic[T]):
    """One page of a listing."""

    items: list[T]
    next_cursor: str | None = Field(description="pass it as `cursor` to get the next page; null on the last one")
