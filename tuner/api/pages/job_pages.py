"""The pages of a job: the job itself, the data of its charts, and its trials as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from tuner.api.access.access import Asker
from tuner.api.http.rendering import render
from tuner.api.pages.inspection_table import inspection_table
from tuner.api.pages.trial_table import COLUMNS, CSV_HEADER, chosen_columns, csv_rows
from tuner.api.pictures.bars import finals_bars
from tuner.api.pictures.chain import draw_chain
from tuner.api.pictures.plot import Plot, draw
from tuner.api.routes.jobs import Cursor, JobId, KindFilter, OutcomeFilter, ReasonFilter, Sort, job_detail, trials_view
from tuner.core.access.caller import Role
from tuner.core.model.bounds import reference_us
from tuner.core.problem.gpu import parse_target
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import JobState
from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.records import Best, JobRecord
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.base.view import is_simulated
from tuner.wire.pages.charts import AxesPage, ForecastsPage, PointsPage, points_page
from tuner.wire.pages.pages import CurvePoint, JobPage, OpRow, TrialFilterView
from tuner.wire.responses.inspections import InspectedFinalist
from tuner.wire.responses.responses import BestView, TrialView

_TRIALS_PER_PAGE = 100
#: Number of trials read per query when a file is written.
_TRIALS_PER_READ = 500
Columns = Annotated[
    list[str], Query(alias="column", max_length=40, description=("columns of the table; default: the usual ones"))
]

#: The choices of the filters.
_CHOICES = {
    "outcome": ("measured", "rejected", "failed"),
    "plan_kind": tuple(PlanKind),
    "reason": tuple(FailureKind),
    "sort": ("number", "time", "speedup"),
}


def job_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the pages. JSON forms are registered first (decorators apply from bottom to top), since the plain path would
    read `.json` as part of the id."""

    @router.get("/ui/jobs/{job_id}", response_model=JobPage)
    @router.get("/ui/jobs/{job_id}.json", response_model=JobPage, include_in_schema=False)
    def show_job(
        request: Request,
        job_id: JobId,
        caller: Asker,
        cursor: Cursor = None,
        outcome: OutcomeFilter = None,
        plan_kind: KindFilter = None,
        reason: ReasonFilter = None,
        sort: Sort = "number",
        columns: Columns = [],  # noqa: B006  FastAPI copies it
    ) -> Response:
        """A job with charts, finals and trials; as JSON with `Accept: application/json` or `.json` after the path."""
        chosen = TrialFilterView(outcome=outcome, plan_kind=plan_kind, reason=reason, sort=sort)
        table = chosen_columns(columns)
        page = job_page(service, job_id, cursor, chosen)
        return render(
            request,
            "job/job.html",
            page,
            plot=_plot(page),
            chain=draw_chain(page.ops),
            bars=finals_bars(page.best, is_study=bool(page.job.num_given)) if page.best else None,
            inspections=inspection_table(page.inspected),
            choices=_CHOICES,
            columns=table,
            all_columns=COLUMNS,
            may_change=caller.role.allows(Role.SUBMIT) and caller.owns(page.job.owners),
        )

    @router.get("/ui/jobs/{job_id}/points.json", include_in_schema=False)
    def list_points(job_id: JobId) -> Response:
        """The trials as points of a chart."""
        job, found = service.job(job_id), service.charts.points(job_id)
        page: PointsPage = points_page(
            job, found.num_trials, found.points, found.stage_s, job_reference_us(service, job)
        )
        return _json(page)

    @router.get("/ui/jobs/{job_id}/axes.json", include_in_schema=False)
    def judge_axes(job_id: JobId) -> Response:
        """Which axes of the schedules determined the times."""
        job, found = service.job(job_id), service.charts.importances(job_id)
        page = AxesPage(
            simulated=is_simulated(job.spec.target_id),
            method="Optuna's PED-ANOVA of the logarithm of the speed-up",
            num_trials=len(found.numbers),
            num_measured=job.num_measured,
            shares={name: round(share, 4) for name, share in found.shares.items()},
            number=list(found.numbers),
            speedup=[round(value, 4) for value in found.speedups],
            values={name: list(column) for name, column in found.values.items()},
        )
        return _json(page)

    @router.get("/ui/jobs/{job_id}/forecasts.json", include_in_schema=False)
    def list_forecasts(job_id: JobId) -> Response:
        """Forecasts and measured times of fused trials with one kind of launch."""
        job = service.job(job_id)
        pairs = service.charts.forecasts(job_id)
        library_us = job.library_us or 0.0
        page = ForecastsPage(
            simulated=is_simulated(job.spec.target_id),
            pairs_us=[(round(forecast, 3), round(ratio * library_us, 3)) for forecast, ratio in pairs],
        )
        return _json(page)

    @router.get("/ui/jobs/{job_id}/trials.csv", include_in_schema=False)
    def export_trials(
        job_id: JobId,
        outcome: OutcomeFilter = None,
        plan_kind: KindFilter = None,
        reason: ReasonFilter = None,
        sort: Sort = "number",
    ) -> Response:
        """All trials that match the filters, with every column, as a file."""
        job = service.job(job_id)
        chosen = TrialFilterView(outcome=outcome, plan_kind=plan_kind, reason=reason, sort=sort)
        headers = {"Content-Disposition": f'attachment; filename="{job.id}-trials.csv"'}
        return StreamingResponse(_csv(service, job, chosen), headers=headers, media_type="text/csv; charset=utf-8")


def _json(page: BaseModel) -> Response:
    return Response(page.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"})


def _csv(service: Service, job: JobRecord, chosen: TrialFilterView) -> Iterator[str]:
    """The file in chunks, so that a job of 100,000 trials is never completely in memory."""
    yield _csv_lines([CSV_HEADER])
    cursor = None
    while True:
        found = service.trials(job.id, cursor=cursor, limit=_TRIALS_PER_READ, **chosen.model_dump())
        yield _csv_lines(csv_rows([TrialView.of(trial, job) for trial in found.items]))
        cursor = found.next_cursor
        if cursor is None:
            return


def _csv_lines(rows: Iterator[list[object]] | list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def job_page(service: Service, job_id: str, cursor: str | None, chosen: TrialFilterView) -> JobPage:
    """Everything on a job's page."""
    job = service.job(job_id)
    trials = service.trials(job_id, cursor=cursor, limit=_TRIALS_PER_PAGE, **chosen.model_dump())
    ours = service.fastest(job_id)
    curve = service.best_so_far(job_id)
    best = service.best(job_id) if job.state is JobState.SUCCEEDED else None
    inspections = service.inspections(job_id, {row.trial_number for row in best.finals}) if best else []
    return JobPage(
        job=job_detail(service, job),
        ops=OpRow.all_of(job.spec.workload, _fetched(best)),
        outcome_counts=service.outcome_counts(job_id),
        curve=[
            CurvePoint(trial_number=number, best_us=best_us, library_us=library_us)
            for number, best_us, library_us in curve
        ],
        two_launches_us=min((time_us for kind, (time_us, _) in ours.items() if kind.is_apart), default=None),
        reference_us=job_reference_us(service, job),
        fastest=TrialView.of(service.trial(job_id, curve[-1][0]), job) if curve else None,
        best=BestView.of(best, job) if best else None,
        inspected=InspectedFinalist.all_of(best, inspections, job) if best else [],
        filter=chosen,
        trials=trials_view(service, job, trials),
    )


def _fetched(best: Best | None) -> Candidate | None:
    """The winning candidate, or our fastest if the library won; None if no generated kernel has a time."""
    if best is None:
        return None
    ours = [(row.time_us, row.candidate) for row in best.finals if row.time_us is not None]
    ours = [(time_us, one) for time_us, one in ours if one.plan_kind.is_ours]
    return min(ours, key=lambda one: (one[1].plan_kind is not best.winner, one[0]))[1] if ours else None


def job_reference_us(service: Service, job: JobRecord) -> float | None:
    """The bound for the job's workload on its GPU, as a live card of this server or else the catalogue describes it;
    None if the GPU is unknown."""
    live = {target.id: target.gpu for target, _ in service.targets()}
    try:
        gpu = live.get(job.spec.target_id) or parse_target(job.spec.target_id).gpu
    except InvalidInput:
        return None
    return reference_us(job.spec.workload, gpu)


def _plot(page: JobPage) -> Plot | None:
    """The curve for browsers without JavaScript. The bound is given as text, since a line for it would flatten the
    curve.
    """
    curve = [(point.trial_number, point.best_us) for point in page.curve]
    baselines = [
        ("library", "library", page.job.library_us),
        ("two-launches", "two launches", page.two_launches_us),
    ]
    return draw(curve, page.job.num_trials, page.job.budget.trials, baselines)
