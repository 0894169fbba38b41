"""The page of a study: a comparison of the schedules of a job, as a table and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tuner.api.http.rendering import render
from tuner.api.routes.jobs import JobId, study_view
from tuner.service import Service
from tuner.wire.responses.study import StudyMember, StudyQuery, StudyView

#: The share of the width that is left free on each side.
_MARGIN = 0.04


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A time on the axis, and its interval, in percent of the width."""

    at: float
    begin: float
    end: float


def study_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page."""

    @router.get("/ui/studies/{job_id}.json", response_model=StudyView, include_in_schema=False)
    @router.get("/ui/studies/{job_id}", response_model=StudyView)
    def show_study(request: Request, job_id: JobId, query: Annotated[StudyQuery, Query()]) -> Response:
        """A study as a table and a plot; as JSON with `Accept: application/json` or `.json` after the path."""
        page = study_view(service, job_id, query.cache)
        best = fastest(page.members)
        return render(request, "study.html", page, marks=marks_of(page.members), best=best, shared=shared_words(page))


def shared_words(page: StudyView) -> str:
    """The words that the lines of all schedules have in common."""
    lines = [one.candidate.text.split() for one in page.members if one.candidate.text]
    return " ".join(word for word in (lines[0] if lines else []) if all(word in line for line in lines))


def fastest(members: list[StudyMember]) -> StudyMember | None:
    """Our candidate with the shortest time."""
    timed = [one for one in members if one.time_us and one.candidate.plan_kind.is_ours]
    return min(timed, key=lambda one: one.time_us or 0.0, default=None)


def marks_of(members: list[StudyMember]) -> list[Mark | None]:
    """The marks of all members with a time, on one axis that spans our times. If the library is outside, it is drawn at
    the end."""
    ends = [_ends(one) for one in members]
    ours = [pair for one, pair in zip(members, ends, strict=True) if pair and one.candidate.plan_kind.is_ours]
    known = [value for pair in ours for value in pair]
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = _MARGIN * (high - low) or 1.0
    low, high = low - room, high + room

    def share(time_us: float) -> float:
        return round(100 * (min(max(time_us, low), high) - low) / (high - low), 2)

    return [
        Mark(at=share(one.time_us), begin=share(pair[0]), end=share(pair[1])) if pair and one.time_us else None
        for one, pair in zip(members, ends, strict=True)
    ]


def _ends(one: StudyMember) -> tuple[float, float] | None:
    return None if one.time_us is None else one.interval_us or (one.time_us, one.time_us)
