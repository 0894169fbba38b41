"""Outcomes and candidates as columns, and back."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import Trial
from tuner.core.trial.ladders.ladder import Ladder, LadderKernel, LadderRung
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Metric, Outcome, Rejected, Stage
from tuner.store.tables.models import TrialRow
from tuner.store.tables.rounds import pack_rounds, unpack_rounds


def outcome_kind(outcome: Outcome) -> str:
    """``measured``, ``rejected`` or ``failed``."""
    return type(outcome).__name__.lower()


def candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    """A dict of plain JSON values."""
    return candidate.to_json()


def candidate_from_json(data: dict[str, Any]) -> Candidate:
    """Inverse of `candidate_to_json`."""
    schedule = data["schedule"]
    return Candidate(plan_kind=PlanKind(data["plan_kind"]), schedule=schedule and _schedule(pickle.dumps(schedule)))


@lru_cache(maxsize=4096)
def _schedule(pickled: bytes) -> Schedule:
    """A cached `Schedule.from_json`, since pages show the same schedules repeatedly, and plan kinds share them."""
    return Schedule.from_json(pickle.loads(pickled))


def _outcome_columns(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Measured():
            return {
                "time_us": outcome.time_us,
                "library_us": outcome.library_us,
                "speedup": outcome.speedup,
                "spread": outcome.spread,
                "rel_error": outcome.rel_error,
                "samples": pack_rounds(outcome.rounds) if outcome.rounds else None,
                "metrics": [[metric.tag, metric.unit, metric.value] for metric in outcome.metrics],
                "procedure": asdict(outcome.procedure) if outcome.procedure else None,
                "truncated": outcome.truncated,
                "reason": outcome.remark or None,
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
        num_known=trial.num_known,
        prior=trial.prior,
        started_at=trial.started_at,
        finished_at=trial.finished_at,
        **_outcome_columns(trial.outcome),
    )


def _outcome_from_row(row: TrialRow, with_rounds: bool) -> Outcome:
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
        rounds=unpack_rounds(row.samples) if with_rounds else (),
        metrics=tuple(Metric(tag=tag, unit=unit, value=value) for tag, unit, value in row.metrics or ()),
        stage_s=row.stage_s,
        procedure=_procedure(row.procedure),
        truncated=bool(row.truncated),
        remark=row.reason or "",
    )


def _procedure(data: dict[str, Any] | None) -> Procedure | None:
    if data is None:
        return None
    return Procedure(
        l2=CacheState(data["l2"]),
        regime=Regime(data["regime"]),
        launch=LaunchStyle(data["launch"]),
        chain_length=data["chain_length"],
    )


def row_to_trial(row: TrialRow, *, with_rounds: bool = True) -> Trial:
    """Inverse of `trial_to_row`; the rounds are left out if not needed."""
    return Trial(
        number=row.number,
        candidate=candidate_from_json({"plan_kind": row.plan_kind, "schedule": row.schedule}),
        outcome=_outcome_from_row(row, with_rounds),
        num_known=row.num_known,
        prior=row.prior,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def ladder_to_json(ladder: Ladder) -> dict[str, Any]:
    """A dict of plain JSON values; `ladder_from_json` is its inverse."""
    kernels = [asdict(one) | {"candidate": candidate_to_json(one.candidate)} for one in ladder.kernels]
    return {
        "workload": ladder.workload,
        "rungs": [asdict(rung) for rung in ladder.rungs],
        "kernels": kernels,
        "slack": ladder.slack,
        "least": ladder.least,
        "reason": ladder.reason,
    }


def ladder_from_json(data: dict[str, Any]) -> Ladder:
    """Inverse of `ladder_to_json`."""
    kernels = [LadderKernel(**one | {"candidate": candidate_from_json(one["candidate"])}) for one in data["kernels"]]
    rungs = [
        LadderRung(**one | {"speedup_ci95": one["speedup_ci95"] and tuple(one["speedup_ci95"])})
        for one in data["rungs"]
    ]
    return Ladder(**data | {"rungs": tuple(rungs), "kernels": tuple(kernels)})
