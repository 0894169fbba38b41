"""The page that compares two jobs or two trials."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from tuner.api.http.rendering import clock, duration, render
from tuner.core.insight.differences import Difference, side_by_side
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.units import figure, microseconds, ratio
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.pages.compare import ComparedGroup, ComparedRow, ComparedSide, ComparePage
from tuner.wire.responses.job_view import JobView
from tuner.wire.responses.responses import BestView, FinalRowView, TrialView

Named = Annotated[str, Query(max_length=120, description="a job's id, or `job-0123456789ab/7` for a trial")]
_NUM_SUGGESTED = 50
#: Groups whose rows are times, for which ratios are shown.
_TIMES = "Times"


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One side of the comparison: texts by group and name, and times in microseconds."""

    view: ComparedSide
    groups: dict[str, dict[str, Any]]
    times_us: dict[str, float | None]


def compare_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/ui/compare.json", response_model=ComparePage, include_in_schema=False)
    @router.get("/ui/compare", response_model=ComparePage)
    def compare(request: Request, a: Named = "", b: Named = "") -> Response:
        """Compares two jobs or two trials, with marks for differences."""
        sides = [_side(service, field, name.strip()) for field, name in (("a", a), ("b", b)) if name.strip()]
        groups = _groups(*sides) if len(sides) == 2 else []
        page = ComparePage(
            a=a,
            b=b,
            sides=[side.view for side in sides],
            groups=groups,
            num_different=sum(row.differs for group in groups for row in group.rows),
            suggestions=[
                {"id": job.id, "workload": job.spec.workload.describe()}
                for job in service.jobs(limit=_NUM_SUGGESTED).items
            ],
        )
        return render(request, "compare.html", page)


def _side(service: Service, field: str, name: str) -> _Side:
    """The side for a job or a trial.

    Raises:
        InvalidInput: `name` is neither a job nor a trial.
    """
    found = re.fullmatch(r"(job-[0-9a-f]+)(?:[/ ](\d{1,9}))?", name)
    if found is None:
        raise InvalidInput(
            field, f"{name!r} is neither a job nor a trial", ("use job-0123456789ab, or job-0123456789ab/7")
        )
    return _job(service, found[1]) if found[2] is None else _trial(service, found[1], int(found[2]))


def _job(service: Service, job_id: str) -> _Side:
    record = service.job(job_id)
    job = JobView.of(record)
    groups: dict[str, dict[str, Any]] = {
        "Request": {
            "pair": job.workload, "target": job.target, "objective": job.objective.model_dump(mode="json"),
            "budget": job.budget.model_dump(), "seed": job.seed, "priors": str(job.priors),
        },
        "Outcome": {
            "state": str(job.state), "trials": job.num_trials, "measured": job.num_measured,
            "rejected": job.num_rejected, "failed": job.num_failed, "search": duration(job.search_s),
            "created": clock(job.created_at),
        },
    }  # fmt: skip
    times = {"ours": job.best_us, "library": job.library_us}
    if record.state is JobState.SUCCEEDED:
        best = BestView.of(service.best(job_id), record)
        groups["Outcome"] |= {"verdict": str(best.verdict), "winner": best.winner.heading}
        rows = _fastest_of_each_kind(best.finals)
        groups["Speed-up over the library"] = {kind.heading: ratio(row.speedup) for kind, row in rows.items()}
        times |= {kind.heading: row.time_us for kind, row in rows.items()}
        groups["Winner"] = best.finals[best.winner_row].candidate.schedule or {}
        groups["Environment"] = best.environment.model_dump(mode="json")
    view = ComparedSide(name=job_id, href=job.links["page"], heading=job.workload, simulated=job.simulated)
    return _Side(view=view, groups=groups, times_us=times)


def _fastest_of_each_kind(finals: Sequence[FinalRowView]) -> dict[PlanKind, FinalRowView]:
    """The fastest finalist of each plan kind, which may have several; some may have no time."""
    found: dict[PlanKind, FinalRowView] = {}
    for row in sorted(finals, key=lambda one: math.inf if one.time_us is None else one.time_us):
        found.setdefault(row.candidate.plan_kind, row)
    return {kind: found[kind] for kind in PlanKind if kind in found}


def _trial(service: Service, job_id: str, number: int) -> _Side:
    job = service.job(job_id)
    trial = TrialView.of(service.trial(job_id, number), job)
    outcome = trial.outcome
    groups: dict[str, dict[str, Any]] = {
        "Trial": {"pair": job.spec.workload.describe(), "target": job.spec.target_id,
                  "plan kind": trial.candidate.plan_kind.heading, "outcome": outcome.kind},
        "Schedule": trial.candidate.schedule or {},
        "Seconds by stage": {stage: f"{seconds:.3f} s" for stage, seconds in outcome.stage_s.items()},
    }  # fmt: skip
    times: dict[str, float | None] = {}
    if outcome.kind == "measured":
        times = {"time": outcome.time_us, "library": outcome.library_us}
        groups["Figures"] = {
            "speed-up": ratio(outcome.speedup), "spread": f"{100 * outcome.spread:.1f} %",
            **{metric.tag: figure(metric.value, metric.unit) for metric in outcome.metrics},
        }  # fmt: skip
    else:
        groups["Trial"]["reason"] = outcome.reason
    href = f"/ui/jobs/{job_id}/trials/{number}"
    heading = trial.candidate.text or trial.candidate.plan_kind.heading
    view = ComparedSide(name=f"{job_id}/{number}", href=href, heading=heading, simulated=trial.simulated)
    return _Side(view=view, groups=groups, times_us=times)


def _groups(first: _Side, second: _Side) -> list[ComparedGroup]:
    names = dict.fromkeys((*first.groups, *second.groups))
    groups = [ComparedGroup(heading=_TIMES, rows=_time_rows(first.times_us, second.times_us))]
    for name in names:
        rows = side_by_side(first.groups.get(name, {}), second.groups.get(name, {}))
        shown = [_row(row) for row in rows]
        groups.append(ComparedGroup(heading=name, rows=shown))
    return [group for group in groups if group.rows]


def _row(row: Difference) -> ComparedRow:
    first, second = _text(row.first), _text(row.second)
    return ComparedRow(name=row.name, first=first, second=second, differs=row.differs, ratio=None)


def _time_rows(first: dict[str, float | None], second: dict[str, float | None]) -> list[ComparedRow]:
    rows = []
    for name in dict.fromkeys((*first, *second)):
        one, other = first.get(name), second.get(name)
        both = one / other if one and other else None
        rows.append(
            ComparedRow(
                name=name,
                first=None if one is None else microseconds(one),
                second=None if other is None else microseconds(other),
                differs=one != other,
                ratio=None if both is None else 1 / both,
            )
        )
    return rows


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)
