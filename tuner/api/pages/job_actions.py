"""Actions on a job's page: cancel, pause, resume, retry, delete."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from tuner.api.access.access import Asker
from tuner.api.access.forms import Form
from tuner.api.routes.jobs import JobId
from tuner.service import Service

Verb = Literal["cancel", "pause", "resume", "retry", "delete"]


def job_action_routes(router: APIRouter, service: Service) -> None:
    """Adds the targets of the forms on a job's page."""

    @router.post("/ui/jobs/{job_id}/{verb}", include_in_schema=False)
    def act(job_id: JobId, verb: Verb, caller: Asker, form: Form) -> Response:
        """Performs the action, and redirects to the job; after a retry to the new one, after a deletion to the list."""
        if verb == "delete":
            left = service.submissions.delete(job_id, caller)
            return RedirectResponse("/" if left is None else f"/ui/jobs/{job_id}", 303)
        if verb == "cancel":
            job = service.cancel(job_id, caller)
        elif verb == "retry":
            job, _ = service.submissions.retry(job_id, caller)
        else:
            job = service.submissions.pause(job_id, caller, verb == "pause")
        return RedirectResponse(f"/ui/jobs/{job.id}", 303)
