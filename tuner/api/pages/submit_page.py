"""The page for submitting jobs, with the equivalent commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from tuner.api.access.access import Asker
from tuner.api.access.forms import Form
from tuner.api.http.rendering import render
from tuner.api.routes.jobs import default_target_id
from tuner.api.routes.submitting import submission_of
from tuner.core.access.caller import Caller
from tuner.core.problem.dtype import Dtype
from tuner.core.trial.job import PriorsChoice
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.base.root_path import root_path
from tuner.wire.pages.pages import SubmitPage
from tuner.wire.requests.batches import BatchRequest
from tuner.wire.requests.problems import of_validation
from tuner.wire.requests.requests import TuneRequest
from tuner.wire.requests.submit_form import INPUTS, WHAT, SubmitForm, as_client, as_curl, path_of


def submit_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page and the target of its form."""

    @router.get("/ui/submit.json", response_model=SubmitPage, include_in_schema=False)
    @router.get("/ui/submit", response_model=SubmitPage)
    def show_form(request: Request) -> Response:
        """The form, filled from the address's parameters, and the equivalent commands."""
        return _show(request, service, request.query_params)

    @router.post("/ui/jobs", include_in_schema=False)
    def submit(request: Request, caller: Asker, form: Form) -> Response:
        """Submits a job, or a batch for several numbers of rows, if all fields are valid."""
        try:
            return RedirectResponse(submit_body(service, SubmitForm.of(form).body(), caller), 303)
        except InvalidInput as error:
            return _show(request, service, form, str(error), 422)


def submit_body(service: Service, body: dict[str, Any], caller: Caller) -> str:
    """The page of the new job or batch.

    Raises:
        InvalidInput: the first invalid field.
    """
    try:
        one = TuneRequest.model_validate(body) if "pair" in body else BatchRequest.model_validate(body)
    except ValidationError as error:
        first = of_validation(error.errors()[0])
        raise InvalidInput(first.field, first.problem, first.remedy) from error
    target_id = default_target_id(service)
    if isinstance(one, TuneRequest):
        job, _ = service.intake.submit(submission_of(one, target_id, caller)).result()
        return f"/ui/jobs/{job.id}"
    specs = one.to_specs(target_id)
    batch, _ = service.batches.submit(specs, caller=caller, terms=one.terms, body_digest=one.digest)
    return f"/ui/batches/{batch.id}"


def _show(
    request: Request, service: Service, fields: Mapping[str, str], problem: str = "", status: int = 200
) -> Response:
    form, url = SubmitForm.of(fields), str(request.base_url).rstrip("/") + root_path()
    body: dict[str, Any] | None = None
    try:
        body = form.body()
    except InvalidInput as error:
        problem = problem or str(error)
    page = SubmitPage(
        form=form,
        path="" if body is None else path_of(body),
        body=body,
        curl="" if body is None else as_curl(url, body),
        client="" if body is None else as_client(url, body),
        problem=problem,
    )
    return render(
        request,
        "submit.html",
        page,
        status=status,
        whats=tuple(WHAT),
        inputs=tuple(INPUTS.values()),
        targets=[target.id for target, _ in service.targets()],
        dtypes=tuple(Dtype),
        priors={PriorsChoice.NEAREST: "earlier winners", PriorsChoice.NONE: "none: a search from scratch"},
    )
