"""Outcomes and candidates as columns, and back."""

from __future__ import annotations

import struct
from typing import Any

from tuner.core.job import Trial
from tuner.core.outcome import (
    Candidate,
    Failed,
    FailureKind,
    Measured,
    Metric,
    Outcome,
    PlanKind,
    Rejected,
    Stage,
)
from tuner.core.schedule import Schedule
from tuner.store.models import TrialRow


def outcome_kind(outcome: Outcome) -> str:
    """``measured``, ``rejected`` or ``failed``."""
    return type(outcome).__name__.lower()


def pack_samples(samples_us: tuple[float, ...]) -> bytes:
    """Little-endian float64, 8 bytes a sample."""
    return struct.pack(f"<{len(samples_us)}d", *samples_us)


def unpack_samples(packed: bytes | None) -> tuple[float, ...]:
    """Inverse of `pack_samples`; samples that were dropped are no samples."""
    return struct.unpack(f"<{len(packed) // 8}d", packed) if packed else ()


def candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    """A dict of plain JSON values."""
    schedule = candidate.schedule.to_json() if candidate.schedule else None
    return {"plan_kind": str(candidate.plan_kind), "schedule": schedule}


def candidate_from_json(data: dict[str, Any]) -> Candidate:
    """Inverse of `candidate_to_json`."""
    schedule = data["schedule"]
    return Candidate(plan_kind=PlanKind(data["plan_kind"]), schedule=schedule and Schedule.from_json(schedule))


def _outcome_columns(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Measured():
            return {
                "time_us": outcome.time_us,
                "library_us": outcome.library_us,
                "speedup": outcome.speedup,
                "spread": outcome.spread,
                "rel_error": outcome.rel_error,
                "samples": pack_samples(outcome.samples_us),
                "metrics": [[metric.tag, metric.unit, metric.value] for metric in outcome.metrics],
            }
        case Rejected():
            return {"stage": str(outcome.stage), "reason": outcome.reason}
        case Failed():
            return {"stage": str(outcome.stage), "failure_kind": str(outcome.kind), "reason": outcome.reason}


def trial_to_row(job_id: str, trial: Trial) -> TrialRow:
    """The row of a new trial."""
    return TrialRow(
        job_id=job_id,
        number=trial.number,
        **candidate_to_json(trial.candidate),
        outcome=outcome_kind(trial.outcome),
        stage_s=trial.outcome.stage_s,
        started_at=trial.started_at,
        finished_at=trial.finished_at,
        **_outcome_columns(trial.outcome),
    )


def _outcome_from_row(row: TrialRow) -> Outcome:
    if row.stage is not None:
        stage, reason = Stage(row.stage), row.reason or ""
        if row.failure_kind is None:
            return Rejected(stage=stage, reason=reason, stage_s=row.stage_s)
        return Failed(stage=stage, kind=FailureKind(row.failure_kind), reason=reason, stage_s=row.stage_s)
    figures = (row.time_us, row.library_us, row.speedup, row.spread, row.rel_error)
    time_us, library_us, speedup, spread, rel_error = (figure or 0.0 for figure in figures)
    return Measured(
        time_us=time_us,
        library_us=library_us,
        speedup=speedup,
        spread=spread,
        rel_error=rel_error,
        samples_us=unpack_samples(row.samples),
        metrics=tuple(Metric(tag=tag, unit=unit, value=value) for tag, unit, value in row.metrics or ()),
        stage_s=row.stage_s,
    )


def row_to_trial(row: TrialRow) -> Trial:
    """Inverse of `trial_to_row`."""
    return Trial(
        number=row.number,
        candidate=candidate_from_json({"plan_kind": row.plan_kind, "schedule": row.schedule}),
        outcome=_outcome_from_row(row),
        started_at=row.started_at,
        finished_at=row.finished_at,
    )
