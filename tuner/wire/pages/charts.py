"""The data of a job's charts: columns of equal length, which take less space than a row per trial."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from pydantic import Field

from tuner.core.trial.records import JobRecord
from tuner.wire.base.view import View, is_simulated


class PointsPage(View):
    """The trials of a job as points; column i of each list is one trial."""

    simulated: bool
    num_trials: int = Field(description="recorded trials; more than the points if these are a selection")
    number: list[int]
    plan_kind: list[int] = Field(description="index in `plan_kinds`")
    plan_kinds: list[str]
    outcome: list[int] = Field(description="index in `outcomes`")
    outcomes: list[str] = Field(description="measured, rejected, or the kind of failure")
    time_us: list[float | None] = Field(description="microseconds; null if it was not measured")
    speedup: list[float | None]
    at_s: list[float] = Field(description="seconds from the job's start to the trial's end")
    library_us: float | None = Field(description="the library's time, microseconds")
    reference_us: float | None = Field(description="the data sheet's bound, microseconds")
    stage_s: dict[str, float] = Field(description="seconds by stage, summed over these trials")
    search_s: float
    card_s: float | None = Field(description="seconds for which the card was busy with trials; null if unknown")


def points_page(
    job: JobRecord, num_trials: int, points: Sequence[Any], stage_s: dict[str, float], reference_us: float | None
) -> PointsPage:
    """Copies a job's points, each of which has the fields of `tuner.store.trials.points.TrialPoint`."""
    kinds = sorted({one.plan_kind for one in points})
    outcomes = sorted({one.failure_kind or one.outcome for one in points})
    return PointsPage(
        simulated=is_simulated(job.spec.target_id),
        num_trials=num_trials,
        number=[one.number for one in points],
        plan_kind=[kinds.index(one.plan_kind) for one in points],
        plan_kinds=kinds,
        outcome=[outcomes.index(one.failure_kind or one.outcome) for one in points],
        outcomes=outcomes,
        time_us=[None if one.time_us is None else round(one.time_us, 3) for one in points],
        speedup=[None if one.speedup is None else round(one.speedup, 4) for one in points],
        at_s=_since(job.started_at or job.created_at, [one.finished_at for one in points]),
        library_us=job.library_us,
        reference_us=reference_us,
        stage_s={name: round(seconds, 3) for name, seconds in stage_s.items()},
        search_s=job.search_s,
        card_s=job.card_s,
    )


def _since(start: float, moments: Sequence[float]) -> list[float]:
    """Seconds from `start` to each of the consecutive `moments`. If the clock was set back between two of them, that
    step counts as zero."""
    steps = (max(0.0, after - before) for before, after in pairwise((start, *moments)))
    return [round(at_s, 3) for at_s in accumulate(steps)]


class AxesPage(View):
    """Which axes of the schedules determined the times of a job's trials."""

    simulated: bool
    method: str = Field(description="what judged them")
    num_trials: int = Field(description="measured trials of generated kernels that this is based on")
    num_measured: int = Field(description="all measured trials; more than the above if these are a selection")
    shares: dict[str, float] = Field(description="by axis, largest first; empty if there are too few trials")
    number: list[int] = Field(description="of the trials")
    speedup: list[float] = Field(description="the library's time divided by theirs")
    values: dict[str, list[Any]] = Field(
        description=("values of the trials by axis; axes that never varied are left out")
    )


class ForecastsPage(View):
    """How the simulator's forecasts compare with measured times."""

    simulated: bool
    pairs_us: list[tuple[float, float]] = Field(
        description=(
            "forecast and measured time, microseconds, of at most a thousand fused trials with the more "
            "frequent kind of launch, plain or programmatic. The measured time is the ratio to the "
            "library in the same rounds, multiplied by the library's time"
        )
    )
