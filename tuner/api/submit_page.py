"""The page by which people submit jobs; it shows the commands that would do the same."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from tuner.api.access import Asker
from tuner.api.forms import Form
from tuner.api.jobs import default_target_id
from tuner.api.rendering import render
from tuner.core.access.caller import Caller
from tuner.core.problem.presets import MODELS
from tuner.core.problem.workload import Activation, Dtype
from tuner.core.trial.job import JobSpec
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.pages import SubmitPage
from tuner.wire.problems import of_validation
from tuner.wire.requests import TuneRequest
from tuner.wire.submit_form import SubmitForm, as_client, as_curl


def submit_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page, and what it is sent to."""

    @router.get("/ui/submit.json", response_model=SubmitPage, include_in_schema=False)
    @router.get("/ui/submit", response_model=SubmitPage)
    def show_form(request: Request) -> Response:
        """The form, filled in with the fields in the address, and the commands that do the same."""
        return _show(request, service, request.query_params)

    @router.post("/ui/jobs", include_in_schema=False)
    def submit(request: Request, caller: Asker, form: Form) -> Response:
        """Submits a job for each number of rows, or none where a field is wrong."""
        try:
            requests = [_request(body) for body in SubmitForm.of(form).bodies()]
            specs = [(one, one.to_spec(default_target_id(service))) for one in requests]
            created = [_submit(service, one, spec, caller) for one, spec in specs]
        except InvalidInput as error:
            return _show(request, service, form, str(error), 422)
        if len(created) == 1:
            return RedirectResponse(f"/ui/jobs/{created[0]}", 303)
        pair = specs[0][1].workload.ops[0]
        return RedirectResponse(f"/?n={pair.n}&k={pair.k}", 303)


def _submit(service: Service, one: TuneRequest, spec: JobSpec, caller: Caller) -> str:
    job, _ = service.submit(spec, body_digest=one.digest, caller=caller, terms=one.terms)
    return job.id


def _request(body: object) -> TuneRequest:
    """Raises:
    InvalidInput: the first field that is wrong.
    """
    try:
        return TuneRequest.model_validate(body)
    except ValidationError as error:
        first = of_validation(error.errors()[0])
        raise InvalidInput(first.field, first.problem, first.remedy) from error


def _show(
    request: Request, service: Service, fields: Mapping[str, str], problem: str = "", status: int = 200
) -> Response:
    form, url = SubmitForm.of(fields), str(request.base_url).rstrip("/")
    try:
        bodies = form.bodies()
    except InvalidInput as error:
        bodies, problem = [], problem or str(error)
    page = SubmitPage(
        form=form,
        bodies=bodies,
        curl=[as_curl(url, body) for body in bodies],
        client=[as_client(url, body) for body in bodies],
        problem=problem,
    )
    presets = {name: (one.hidden, one.intermediate) for name, one in MODELS.items()}
    return render(
        request,
        "submit.html",
        page,
        status=status,
        presets=presets,
        targets=[target.id for target, _ in service.targets()],
        activations=tuple(Activation),
        dtypes=tuple(Dtype),
    )
