"""Routes for a trial's inspections: energy, hardware counters and in-kernel traces."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.routes.jobs import JobId, TrialNumber
from tuner.core.access.caller import Caller
from tuner.core.insight.traces.trace_events import trace_events
from tuner.core.trial.records import Inspection, InspectionKind, InspectionState
from tuner.core.trial.reports.inspection import Trace
from tuner.errors import Conflict
from tuner.service import Service
from tuner.wire.responses.inspections import (
    COUNTERS_EXAMPLES,
    CountersRequest,
    CountersView,
    EnergyView,
    TraceFile,
    TraceView,
)

TraceFormat = Annotated[
    Literal["json", "perfetto"],
    Query(description="`json`: spans and shares; `perfetto`: a file in the Trace Event Format, for ui.perfetto.dev"),
]


_VIEWS: dict[InspectionKind, type[EnergyView] | type[CountersView] | type[TraceView]] = {
    InspectionKind.ENERGY: EnergyView,
    InspectionKind.COUNTERS: CountersView,
    InspectionKind.TRACE: TraceView,
}


def _responses(model: type[BaseModel], *, asked: bool) -> dict[int | str, dict[str, Any]]:
    """Responses for OpenAPI: a 202 while the inspection is pending, and a 200 once it has ended."""
    also = (
        {200: ("It was collected earlier, or could not be collected")}
        if asked
        else {202: "It is pending; request it again later"}
    )
    return {status: {"model": model, "description": text} for status, text in also.items()}


def inspection_routes(service: Service) -> APIRouter:
    """Returns the routes that request inspections, and those that return them."""
    router = APIRouter(tags=["inspections"], responses=PROBLEM_RESPONSES)

    def answer(inspection: Inspection, *, asked: bool = False) -> Response:
        """An inspection as JSON, with the status code for its state."""
        job = service.job(inspection.job_id)
        view = _VIEWS[inspection.kind].of(inspection, job)
        status = 202 if inspection.state is InspectionState.PENDING else 200
        headers = {"Location": view.href} if asked else {}
        return Response(view.model_dump_json(), status, headers, media_type="application/json")

    def ask(
        caller: Caller, job_id: str, number: int, kind: InspectionKind, metrics: tuple[str, ...] | None = None
    ) -> Response:
        inspection, is_pending = service.ask_inspection(job_id, number, kind, metrics, caller)
        return answer(inspection if is_pending else service.inspection(job_id, number, kind), asked=True)

    @router.post(
        "/jobs/{job_id}/trials/{number}/energy",
        status_code=202,
        response_model=EnergyView,
        responses=_responses(EnergyView, asked=True),
    )
    def ask_energy(job_id: JobId, number: TrialNumber, caller: Asker) -> Response:
        """Requests the energy per run of a measured trial."""
        return ask(caller, job_id, number, InspectionKind.ENERGY)

    @router.get(
        "/jobs/{job_id}/trials/{number}/energy",
        response_model=EnergyView,
        responses=_responses(EnergyView, asked=False),
    )
    def get_energy(job_id: JobId, number: TrialNumber) -> Response:
        """The most recently requested energy per run."""
        return answer(service.inspection(job_id, number, InspectionKind.ENERGY))

    @router.post(
        "/jobs/{job_id}/trials/{number}/counters",
        status_code=202,
        response_model=CountersView,
        responses=_responses(CountersView, asked=True),
    )
    def ask_counters(
        job_id: JobId,
        number: TrialNumber,
        caller: Asker,
        body: Annotated[CountersRequest | None, Body(openapi_examples=COUNTERS_EXAMPLES)] = None,
    ) -> Response:
        """Requests the hardware counters of a measured trial: the base set, or metrics by name."""
        return ask(caller, job_id, number, InspectionKind.COUNTERS, body.names if body else None)

    @router.get(
        "/jobs/{job_id}/trials/{number}/counters",
        response_model=CountersView,
        responses=_responses(CountersView, asked=False),
    )
    def get_counters(job_id: JobId, number: TrialNumber) -> Response:
        """The most recently requested counters."""
        return answer(service.inspection(job_id, number, InspectionKind.COUNTERS))

    @router.post(
        "/jobs/{job_id}/trials/{number}/trace",
        status_code=202,
        response_model=TraceView,
        responses=_responses(TraceView, asked=True),
    )
    def ask_trace(job_id: JobId, number: TrialNumber, caller: Asker) -> Response:
        """Requests a trace of a measured trial of a generated kernel, which the kernel itself records."""
        return ask(caller, job_id, number, InspectionKind.TRACE)

    @router.get(
        "/jobs/{job_id}/trials/{number}/trace",
        response_model=TraceView | TraceFile,
        responses=_responses(TraceView, asked=False),
    )
    def get_trace(job_id: JobId, number: TrialNumber, format: TraceFormat = "json") -> Response:
        """The trace; with `format=perfetto` as a file, or a 409 if there is none."""
        inspection = service.inspection(job_id, number, InspectionKind.TRACE)
        if inspection.state is InspectionState.PENDING or format == "json":
            return answer(inspection)
        if not isinstance(inspection.result, Trace) or not inspection.result.spans:
            raise Conflict(f"trial {number} of {job_id} has no trace: {inspection.reason}")
        headers = {"Content-Disposition": f'attachment; filename="{job_id}-trial-{number}.trace.json"'}
        content = json.dumps(trace_events(inspection.result), separators=(",", ":"))
        return Response(content, headers=headers, media_type="application/json")

    return router
