"""A study: a comparison of the schedules of a job, in rounds that they all share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from tuner.core.insight.forecast_quality import forecast_of
from tuner.core.insight.study import panels_of, varied
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.job import JobState, Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.records import Best, JobRecord
from tuner.wire.base.view import View, is_simulated
from tuner.wire.responses.responses import CandidateView, FinalRowView

#: Maximum number of panels in a cache.
MAX_CACHE = 512


#: The reason shown for a measured schedule that was not in rounds with the others.
_ALONE = "not in the shared rounds, which include only the 64 fastest; this time is from its own trial"


class StudyQuery(BaseModel):
    """The query of `GET /jobs/{job_id}/study`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    cache: Annotated[
        int, Field(ge=2, le=MAX_CACHE, description="operand panels that the cache holds, for `panels`")
    ] = 4


class StudyMember(View):
    """A schedule, or the library."""

    varied: str = Field(description="the words of its line in which the members differ; for the library, its name")
    candidate: CandidateView
    trial_number: int | None = Field(description="null if it was not tried yet")
    time_us: float | None = Field(
        description="the median of the shared rounds; before the finals, or if it was not in them, that of its trial"
    )
    interval_us: tuple[float, float] | None = Field(description="95 % interval; null before the finals")
    speedup: float | None = Field(description="library time divided by this time")
    speedup_ci95: tuple[float, float] | None
    forecast_us: float | None = Field(
        description=("the simulator's forecast; null for the library, and if not measured")
    )
    panels: int | None = Field(
        description=(
            "operand panels that its order loads through such a cache, counted as in `GET /orders`; "
            "null for grids above 8 x 8 tiles, and for workloads other than a product or a pair"
        )
    )
    reason: str = Field(description="why there is no time, or none from the shared rounds; empty otherwise")


class StudyView(View):
    """All members, the library first, then in the given order."""

    job_id: str
    workload: str
    target: str
    simulated: bool
    state: JobState
    cache: int
    num_rounds: int = Field(description="rounds that all members share; 0 before the finals")
    members: list[StudyMember]

    @classmethod
    def of(cls, job: JobRecord, trials: Mapping[Candidate, Trial], best: Best | None, cache: int) -> Self:
        """The study of the job's given schedules, or of its finalists; `trials` are their records."""
        rows = {row.candidate: FinalRowView.of(row, job.spec.workload) for row in best.finals} if best else {}
        library = [one for one in (*rows, *trials) if not one.plan_kind.is_ours][:1]
        ours = job.spec.tried or tuple(one for one in rows if one.plan_kind.is_ours)
        members = [*library, *ours]
        words = varied([one.plan_kind for one in members], [str(one.schedule or "") for one in members])
        return cls(
            job_id=job.id,
            workload=job.spec.workload.describe(),
            target=job.spec.target_id,
            simulated=is_simulated(job.spec.target_id),
            state=job.state,
            cache=cache,
            num_rounds=max((row.num_rounds for row in rows.values()), default=0),
            members=[
                _member(job, one, name, trials.get(one), rows.get(one), cache, was_held=best is not None)
                for one, name in zip(members, words, strict=True)
            ],
        )


def _member(
    job: JobRecord,
    candidate: Candidate,
    name: str,
    trial: Trial | None,
    row: FinalRowView | None,
    cache: int,
    *,
    was_held: bool,
) -> StudyMember:
    """A member of the study. `was_held` says whether the finals are over; if so, a measured trial without a row was not
    in them."""
    outcome = trial.outcome if trial else None
    measured = outcome if isinstance(outcome, Measured) else None
    return StudyMember(
        varied=name,
        candidate=CandidateView.of(candidate, job.spec.workload),
        trial_number=trial.number if trial else None,
        time_us=row.time_us if row else measured.time_us if measured else None,
        interval_us=row.interval_us if row else None,
        speedup=row.speedup if row else measured.speedup if measured else None,
        speedup_ci95=row.speedup_ci95 if row else None,
        forecast_us=forecast_of(outcome) if outcome else None,
        panels=panels_of(job.spec.workload, candidate, cache) if candidate.schedule else None,
        reason=row.reason if row else _ALONE if measured and was_held else str(getattr(outcome, "reason", "")),
    )
