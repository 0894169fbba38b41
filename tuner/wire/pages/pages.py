"""The data of the dashboard's pages. A page's template and its JSON form use the same model."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field

from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.proof.candidate_plans import launches_of
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import BatchSummary, batch_name
from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.records import JobRecord, Verdict
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View
from tuner.wire.requests.submit_form import SubmitForm
from tuner.wire.responses.inspections import InspectedFinalist
from tuner.wire.responses.job_detail import JobDetail
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.responses import BestView, PageView, TargetView, TrialView


class BatchSummaryView(View):
    """The jobs of a batch that match a listing's filters, shown as one row."""

    id: str
    name: str = Field(description="the shape of its newest job, and its range of rows")
    jobs_by_state: dict[JobState, int]
    num_jobs: int
    num_trials: int
    num_planned: int = Field(description="trials in the budgets of open jobs, and those of ended ones")
    speedups: tuple[float, float] | None = Field(description="smallest and largest gain; null before the first")
    page: Link

    @property
    def state(self) -> JobState:
        """The state of its jobs: running if any of them runs, otherwise waiting if any waits, otherwise ended."""
        return next(state for state in _IN_ORDER if state in self.jobs_by_state)

    @classmethod
    def of(cls, batch: BatchSummary, workload: Workload) -> Self:
        """Copies `batch`, one of whose jobs has `workload`."""
        return cls(
            id=batch.id,
            name=batch_name(workload, batch.rows),
            jobs_by_state=batch.counts,
            num_jobs=sum(batch.counts.values()),
            **{name: getattr(batch, name) for name in ("num_trials", "num_planned", "speedups")},
            page=f"/ui/batches/{batch.id}",
        )


_IN_ORDER = (
    *(JobState.SEARCHING, JobState.FINALS, JobState.QUEUED),
    *(JobState.FAILED, JobState.SUCCEEDED, JobState.CANCELLED),
)


class ListedJob(JobView):
    """A job in a listing."""

    batch: BatchSummaryView | None = Field(description="its batch, if the row stands for one; else null")

    verdict: Verdict | None = Field(description="null until it succeeds")
    winner: PlanKind | None = Field(description="the plan kind that won; null until it succeeds")
    queue_position: int | None = Field(description="jobs ahead of it; 0 while it runs, null once it has ended")
    queue_eta_s: float | None = Field(description="seconds until it ends; null if unknown")

    @property
    def is_open(self) -> bool:
        """Whether any job of the row can still be cancelled."""
        return not (self.batch or self).state.is_final

    @classmethod
    def with_standing(
        cls,
        job: JobRecord,
        result: tuple[Verdict, PlanKind] | None,
        place: tuple[int | None, float | None],
        batch: BatchSummary | None = None,
    ) -> Self:
        """Copies the verdict and the winner, the position in the queue and the seconds until the end of the search, and
        the batch of the row."""
        verdict, winner = result or (None, None)
        return cls(
            **dict(JobView.of(job)),
            verdict=verdict,
            winner=winner,
            queue_position=place[0],
            queue_eta_s=place[1],
            batch=None if batch is None else BatchSummaryView.of(batch, job.spec.workload),
        )


class JobFilterView(View):
    """Which jobs a page lists; null for all."""

    state: JobState | None
    target: str | None
    owner: str | None
    project: str | None
    label: str | None
    batch: str | None
    m: int | None
    n: int | None
    k: int | None


class JobsPage(View):
    """The front page."""

    targets: list[TargetView]
    state: JobState | None = Field(description="the filter; null for all")
    filter: JobFilterView
    sort: str
    num_open: int = Field(description="jobs that are queued or running, whatever the filter")
    jobs: PageView[ListedJob] = Field(description="rows; a row with a `batch` stands for all of its jobs")

    @property
    def is_filtered(self) -> bool:
        """Whether the page may be incomplete."""
        return any(value is not None for value in self.filter.model_dump().values())


class SubmitPage(View):
    """The form for submitting jobs."""

    form: SubmitForm
    path: Link = Field(description="`/jobs`, or `/batches` for several numbers of rows; empty while a field is invalid")
    body: dict[str, Any] | None = Field(description="the request body that would be posted there")
    curl: str
    client: str
    problem: str = Field(description="what is wrong with the form; empty if it is valid")


class CurvePoint(View):
    """The state of a search after a trial with a higher speed-up than all earlier trials of generated kernels."""

    trial_number: int
    best_us: float = Field(description="its time, microseconds")
    library_us: float | None = Field(description="fastest time of the library so far, microseconds")


class TrialFilterView(View):
    """Which trials the table lists, and in which order."""

    outcome: str | None
    plan_kind: PlanKind | None
    reason: FailureKind | None
    sort: str


class OpRow(View):
    """One op of a chain."""

    name: str
    sizes: str = Field(
        description=("m x n x k, and whether W includes a gate; for a launch op, its kind's description")
    )
    reads: str = Field(description="what it multiplies")
    reads_ops: dict[str, str] = Field(
        description="earlier ops, by the field that names them: source, residual_source, norm"
    )
    norm: str = Field(description="the op whose output it normalizes; empty if none")
    adds: str = Field(description="what is added: a residual, a bias; empty if nothing is")
    activation: str = Field(description="empty for none")
    launch: int | None = Field(
        description=("which launch of the best generated kernel computes it, from 1; null until the job ends")
    )

    @classmethod
    def all_of(cls, workload: Workload, best: Candidate | None) -> list[Self]:
        """The ops of a chain, with the launches that `best` puts them in; empty for a pair."""
        if workload.kind is not WorkloadKind.CHAIN:
            return []
        rows, names, launches = [], {op.name for op in workload.ops}, _launches(workload, best)
        for op in workload.ops:
            words = op.words()
            rows.append(
                cls(
                    name=op.name,
                    sizes=words.sizes,
                    reads=words.reads,
                    reads_ops={field: tensor for field, tensor in words.named.items() if tensor in names},
                    norm=words.norm,
                    adds=words.adds,
                    activation=words.function,
                    launch=launches.get(op.name),
                )
            )
        return rows


def _launches(workload: Workload, best: Candidate | None) -> dict[str, int]:
    """The number of each op's launch, counted from 1; empty if unknown."""
    if best is None or best.schedule is None or workload.unknown_kinds:
        return {}
    launches = enumerate(launches_of(workload, best), start=1)
    return {workload.ops[op].name: number for number, launch in launches for op in launch}


class JobPage(View):
    """All data of a job."""

    job: JobDetail
    ops: list[OpRow] = Field(description="the ops of a chain; empty for a pair")
    outcome_counts: dict[str, int] = Field(description="trials by outcome: measured, rejected, each kind of failure")
    curve: list[CurvePoint]
    two_launches_us: float | None = Field(description="fastest unfused generated kernels so far, microseconds")
    reference_us: float | None = Field(description="the data sheet's bound, microseconds")
    fastest: TrialView | None = Field(description="the fastest trial of a generated kernel so far, by its speed-up")
    best: BestView | None = Field(description="finals and verdict, once the job has succeeded")
    inspected: list[InspectedFinalist] = Field(description="inspections of the best of each plan kind")
    filter: TrialFilterView
    trials: PageView[TrialView]
