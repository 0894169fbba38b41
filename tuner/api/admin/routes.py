"""Routes for tokens and quotas; only admins may use them."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Response

from tuner.api.access.access import Asker
from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.core.access.quota import Quota, QuotaScope
from tuner.service import Service
from tuner.wire.responses.access import NewTokenView, QuotaRequest, QuotaView, TokenRequest, TokenView

TokenId = Annotated[str, Path(max_length=100, description="a token's id, e.g. `tok-0123456789ab`")]
Name = Annotated[str, Path(min_length=1, max_length=64, description="an owner or a project; `*` for all others")]


def admin_routes(service: Service) -> APIRouter:
    """Returns the routes that create, list and revoke tokens, and that set, list and remove quotas."""
    router = APIRouter(tags=["access"], responses=PROBLEM_RESPONSES)
    access, quotas = service.access, service.submissions.quotas

    @router.get("/tokens")
    def list_tokens() -> list[TokenView]:
        """All tokens ever created, oldest first, without their secrets; for admins."""
        return [TokenView.of(one, time.time()) for one in access.tokens()]

    @router.post("/tokens", status_code=201)
    def make_token(body: TokenRequest, caller: Asker, response: Response) -> NewTokenView:
        """Creates a token; only this response contains its secret. For admins."""
        token, secret = access.make_token(caller, body.owner, body.role, body.note, body.days)
        response.headers["cache-control"] = "no-store"
        return NewTokenView(token=TokenView.of(token, time.time()), secret=secret)

    @router.post("/tokens/{token_id}:revoke")
    def revoke_token(token_id: TokenId, caller: Asker) -> TokenView:
        """Revokes a token; for admins."""
        return TokenView.of(access.revoke_token(caller, token_id), time.time())

    @router.get("/quotas")
    def list_quotas() -> list[QuotaView]:
        """The quotas of owners and projects, and their usage; for admins."""
        return [QuotaView.of(*one) for one in quotas.every()]

    @router.put("/quotas/{scope}/{name:path}", status_code=204)
    def set_quota(scope: QuotaScope, name: Name, body: QuotaRequest, caller: Asker) -> None:
        """Sets the limits of an owner or a project; for admins."""
        quotas.put(Quota(scope=scope, name=name, **body.model_dump()), caller)

    @router.delete("/quotas/{scope}/{name:path}", status_code=204)
    def drop_quota(scope: QuotaScope, name: Name, caller: Asker) -> None:
        """Removes a quota; for admins."""
        quotas.drop(scope, name, caller)

    return router
