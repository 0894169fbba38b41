"""The admins' page for tokens and quotas."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ValidationError

from tuner.api.access.access import Asker
from tuner.api.access.forms import Form
from tuner.api.admin.routes import TokenId
from tuner.api.http.rendering import render
from tuner.core.access.caller import Role
from tuner.core.access.quota import Quota, QuotaScope
from tuner.errors import InvalidInput
from tuner.service import Service
from tuner.wire.responses.access import AccessPage, NewTokenView, QuotaRequest, QuotaView, TokenRequest, TokenView

_PAGE = "/ui/access"
Model = TypeVar("Model", bound=BaseModel)


def access_page_routes(router: APIRouter, service: Service) -> None:
    """Adds the page and the targets of its forms."""

    @router.get("/ui/access.json", response_model=AccessPage, include_in_schema=False)
    @router.get(_PAGE, response_model=AccessPage)
    def show_access(request: Request) -> Response:
        """Tokens and quotas, for admins; as JSON with `Accept: application/json` or `.json` after the path."""
        return _page(request, service)

    @router.post("/ui/access/tokens", include_in_schema=False)
    def make_token(request: Request, caller: Asker, form: Form) -> Response:
        """Creates a token, and shows its secret once."""
        asked = _filled(TokenRequest, form)
        token, secret = service.access.make_token(caller, asked.owner, asked.role, asked.note, asked.days)
        return _page(request, service, NewTokenView(token=TokenView.of(token, time.time()), secret=secret))

    @router.post("/ui/access/tokens/{token_id}/revoke", include_in_schema=False)
    def revoke_token(token_id: TokenId, caller: Asker, form: Form) -> Response:
        """Revokes a token."""
        service.access.revoke_token(caller, token_id)
        return RedirectResponse(_PAGE, 303)

    @router.post("/ui/access/quotas", include_in_schema=False)
    def set_quota(caller: Asker, form: Form) -> Response:
        """Sets a quota."""
        scope, name = _whose(form)
        limits = _filled(QuotaRequest, {key: value for key, value in form.items() if key not in ("scope", "name")})
        service.submissions.quotas.put(Quota(scope=scope, name=name, **limits.model_dump()), caller)
        return RedirectResponse(_PAGE, 303)

    @router.post("/ui/access/quotas/drop", include_in_schema=False)
    def drop_quota(caller: Asker, form: Form) -> Response:
        """Removes a quota."""
        service.submissions.quotas.drop(*_whose(form), caller)
        return RedirectResponse(_PAGE, 303)


def _page(request: Request, service: Service, made: NewTokenView | None = None) -> Response:
    now = time.time()
    tokens = [TokenView.of(one, now) for one in reversed(service.access.tokens())]
    page = AccessPage(
        tokens=sorted(tokens, key=lambda token: not token.is_valid),
        quotas=[QuotaView.of(*one) for one in service.submissions.quotas.every()],
        made=made,
    )
    return render(request, "admin/access.html", page, roles=tuple(Role), scopes=tuple(QuotaScope))


def _filled(model: type[Model], form: Mapping[str, str]) -> Model:
    """A form's data as `model`, the API's model of the request body."""
    try:
        return model.model_validate_strings(dict(form))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


def _whose(form: Mapping[str, str]) -> tuple[QuotaScope, str]:
    scope = form.get("scope", "")
    if scope not in tuple(QuotaScope):
        raise InvalidInput("scope", f"{scope[:80]!r} is not a scope", f"use one of {', '.join(QuotaScope)}")
    return QuotaScope(scope), form.get("name", "")
