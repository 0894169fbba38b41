"""Pages of a trial: overview, timeline as tables, and source."""

from __future__ import annotations

from functools import lru_cache

from fastapi import APIRouter, Request, Response
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CudaLexer

from tuner.api.http.errors import PAGE_RESPONSES
from tuner.api.http.rendering import render
from tuner.api.pages.trial_page import timeline_page, trial_page
from tuner.api.pictures.chain import draw_chain
from tuner.api.pictures.roofline import draw_roofline
from tuner.api.pictures.samples import draw_samples
from tuner.api.pictures.schedule import draw_schedule
from tuner.api.routes.jobs import JobId, TrialNumber
from tuner.api.routes.trials import GanttOf, gantt_of
from tuner.service import Service
from tuner.wire.pages.trial_page import SourcePage, TimelinePage, TrialPage

_TRIAL = "/ui/jobs/{job_id}/trials/{number}"


def trial_page_routes(service: Service) -> APIRouter:
    """Adds each page, and its JSON form at the same path with `.json`."""
    router = APIRouter(tags=["dashboard"], responses=PAGE_RESPONSES, default_response_class=Response)

    @router.get(_TRIAL, response_model=TrialPage)
    @router.get(f"{_TRIAL}.json", response_model=TrialPage, include_in_schema=False)
    def show_trial(request: Request, job_id: JobId, number: TrialNumber) -> Response:
        """A trial with its schedule, resources, samples, counters, roofline and Gantt chart."""
        page, plans = trial_page(service, job_id, number)
        return render(
            request,
            "trial.html",
            page,
            chain=draw_chain(page.ops),
            picture=draw_schedule(plans),
            samples_plot=draw_samples(page.samples),
            roofline_plot=draw_roofline(page.roofline),
        )

    @router.get(f"{_TRIAL}/timeline", response_model=TimelinePage)
    @router.get(f"{_TRIAL}/timeline.json", response_model=TimelinePage, include_in_schema=False)
    def show_timeline(request: Request, job_id: JobId, number: TrialNumber, of: GanttOf = "forecast") -> Response:
        """A trace or a forecast as tables: shares per op, the longest waits, and the work of each SM."""
        page = timeline_page(job_id, number, of, gantt_of(service, job_id, number, of))
        return render(request, "timeline.html", page)

    @router.get(f"{_TRIAL}/source", response_model=SourcePage)
    @router.get(f"{_TRIAL}/source.json", response_model=SourcePage, include_in_schema=False)
    def show_source(request: Request, job_id: JobId, number: TrialNumber) -> Response:
        """The source of a trial's kernel, with syntax highlighting."""
        source = service.source(job_id, number)
        schedule = service.trial(job_id, number).candidate.schedule
        lines = source.count("\n")
        page = SourcePage(job_id=job_id, number=number, schedule=str(schedule), num_lines=lines, source=source)
        return render(request, "source.html", page, code=_highlighted(source))

    return router


@lru_cache(maxsize=4)
def _highlighted(source: str) -> str:
    """HTML with classes only, since the pages' policy forbids inline styles."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True, cssclass="source")
    return str(highlight(source, CudaLexer(), formatter))
