"""Batches in responses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Self

from pydantic import Field

from tuner.core.problem.workload import Workload
from tuner.core.trial.job import JobState
from tuner.core.trial.ladders.batch import BatchRecord
from tuner.core.trial.ladders.ladder import Ladder, LadderKernel, LadderRung
from tuner.core.trial.records import JobRecord
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View, is_simulated, moment
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.responses import ArtifactLink, CandidateView, PageView


class BatchRemains(View):
    """What is left of a deleted batch."""

    id: str
    kept: list[str] = Field(description="ids of its jobs that are kept, since another request or owner needs them")


class BatchView(View):
    """A batch and its state."""

    id: str
    name: str = Field(description="the shape of its first job, its range of rows, and how many other shapes there are")
    labels: tuple[str, ...] = Field(description="of its first job")
    state: JobState
    target: str
    simulated: bool = Field(description="whether its figures are simulated")
    owner: str = Field(description="who requested it; empty if the service had no tokens")
    project: str
    created_at: datetime
    num_jobs: int
    jobs_by_state: dict[JobState, int]
    num_trials: int = Field(description="recorded trials of all its jobs")
    num_planned: int = Field(
        description="maximum trials: the sum of all budgets, plus what the jobs of a ladder try from each other"
    )
    num_paused: int = Field(description="open jobs that an owner has paused")
    search_s: float = Field(description="seconds of search of all its jobs")
    eta_s: float | None = Field(
        description=(
            "estimated seconds left, for search and finals, at the current pace with the currently "
            "usable cards; null before the first trial"
        )
    )
    card_share: float | None = Field(
        description="share of the search time for which the card was busy with trials; null if unknown"
    )
    speedups: tuple[float, float] | None = Field(
        description="smallest and largest gain over the library among its jobs that succeeded; null before the first"
    )
    queue_position: int | None = Field(
        description="jobs ahead of its next job; 0 while one is running, null if none is queued"
    )
    num_ladders: int
    num_answered: int = Field(description="ladders that have a result, or will never have one")
    links: dict[str, Link] = Field(description="paths of resources of the batch")

    @classmethod
    def of(
        cls,
        batch: BatchRecord,
        num_cards: int,
        *,
        name: str,
        labels: tuple[str, ...],
        speedups: tuple[float, float] | None,
        queue_position: int | None,
    ) -> Self:
        """Copies `batch` and what is known about its jobs, which can run on `num_cards` cards."""
        path = f"/batches/{batch.id}"
        copied = ("id", "state", "owner", "project", "num_jobs", "num_trials", "num_planned", "num_paused", "search_s")
        return cls(
            name=name,
            labels=labels,
            speedups=speedups,
            queue_position=queue_position,
            eta_s=batch.eta_s(num_cards, time.time()),
            **{name: getattr(batch, name) for name in (*copied, "card_share", "num_ladders", "num_answered")},
            target=batch.target_id,
            simulated=is_simulated(batch.target_id),
            created_at=moment(batch.created_at),
            jobs_by_state=dict(batch.counts),
            links={
                "self": path,
                **{name: f"{path}/{name}" for name in ("jobs", "events", "best")},
                "page": f"/ui{path}",
            },
        )


class BatchJobView(View):
    """A job of a batch."""

    ladder: int = Field(description="number of its ladder, which all jobs of one shape share")
    m: int = Field(description="its rows, or its images")
    job: JobView

    @classmethod
    def of(cls, job: JobRecord, ladder: int) -> Self:
        """Copies `job`."""
        return cls(ladder=ladder, m=job.spec.workload.batch_size, job=JobView.of(job))


class LadderKernelView(View):
    """A kernel that a ladder uses."""

    candidate: CandidateView
    m_lo: int = Field(description="the minimum rows for which it runs")
    m_hi: int = Field(description="the maximum rows for which it runs, for which its artifact is made")
    job_id: str = Field(description="the job for this number of rows")
    artifact: ArtifactLink | None

    @classmethod
    def of(cls, kernel: LadderKernel, workload: Workload) -> Self:
        """Copies `kernel`, which is for `workload`."""
        digest = kernel.artifact_digest
        return cls(
            candidate=CandidateView.of(kernel.candidate, workload),
            m_lo=kernel.m_lo,
            m_hi=kernel.m_hi,
            job_id=kernel.job_id,
            artifact=None if digest is None else ArtifactLink(digest=digest, href=f"/artifacts/{digest}"),
        )


class RungView(View):
    """What runs for a range of rows."""

    m_lo: int
    m_hi: int = Field(description="the end of the range, inclusive; the figures are for this number of rows")
    kernel: int | None = Field(description="index in `kernels`; null for the library")
    job_id: str | None = Field(description="the job that measured it; null if nothing was measured")
    time_us: float | None
    library_us: float | None
    speedup: float | None = Field(description="library time divided by this time, median of the rounds")
    speedup_ci95: tuple[float, float] | None
    loss: float | None = Field(description="how much slower it is than the fastest measured one, relative")


class GainView(View):
    """The gain of the ladder at one measured number of rows: a point of its curve."""

    m: int
    time_us: float
    library_us: float
    speedup: float
    speedup_ci95: tuple[float, float] | None
    kernel: int | None


class LadderView(View):
    """The result of a ladder; above its last rung the library runs."""

    number: int
    workload: str = Field(description="the pair with the most rows, in one line")
    simulated: bool
    rungs: list[RungView] = Field(description="ranges that together cover every number of rows from 1 to the largest")
    kernels: list[LadderKernelView]
    gains: list[GainView] = Field(description="speed-up by number of rows: only measured ones, ascending")
    slack: float = Field(description="kernels within this distance of the fastest count as equal, relative")
    least_kernels: int = Field(description="whether it is proven that fewer kernels do not suffice")
    reason: str = Field(description="why there is no result; empty if there is one")

    @classmethod
    def of(cls, number: int, ladder: Ladder, workloads: Mapping[str, Workload], target_id: str) -> Self:
        """Copies `ladder`; `workloads` are those of its jobs, by id."""
        return cls(
            number=number,
            workload=ladder.workload,
            simulated=is_simulated(target_id),
            rungs=[RungView.model_validate(rung) for rung in ladder.rungs],
            kernels=[LadderKernelView.of(kernel, workloads[kernel.job_id]) for kernel in ladder.kernels],
            gains=[gain for rung in ladder.rungs if (gain := _gain(rung))],
            slack=ladder.slack,
            least_kernels=ladder.least,
            reason=ladder.reason,
        )


def _gain(rung: LadderRung) -> GainView | None:
    if rung.time_us is None or rung.library_us is None or rung.speedup is None:
        return None
    return GainView(
        m=rung.m_hi,
        time_us=rung.time_us,
        library_us=rung.library_us,
        speedup=rung.speedup,
        speedup_ci95=rung.speedup_ci95,
        kernel=rung.kernel,
    )


class BatchBestView(View):
    """The results of a batch."""

    id: str = Field(description="of the batch")
    target: str
    simulated: bool
    is_complete: bool = Field(description="whether every ladder has its result")
    ladders: list[LadderView]

    @classmethod
    def of(cls, batch: BatchRecord, ladders: Mapping[int, Ladder], workloads: Mapping[str, Workload]) -> Self:
        """Copies `ladders`."""
        return cls(
            id=batch.id,
            target=batch.target_id,
            simulated=is_simulated(batch.target_id),
            is_complete=batch.num_answered == batch.num_ladders,
            ladders=[LadderView.of(number, one, workloads, batch.target_id) for number, one in ladders.items()],
        )


class BatchPage(View):
    """All data of a batch."""

    batch: BatchView
    ladders: list[LadderView] = Field(description="the available answers")
    jobs: PageView[BatchJobView]


class BatchesPage(View):
    """All batches."""

    batches: PageView[BatchView]
