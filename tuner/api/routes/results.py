"""Routes of results: the best of a workload, artifacts, targets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from tuner.api.http.errors import PROBLEM_RESPONSES
from tuner.api.routes.jobs import default_target_id
from tuner.service import Service
from tuner.versions import SIGNATURE_HEADER
from tuner.wire.base.fields import SHA256
from tuner.wire.requests.best_query import BestQuery
from tuner.wire.responses.responses import BestMatchView, TargetView

#: The signature's header, for OpenAPI.
_SIGNATURE = {
    SIGNATURE_HEADER: {
        "description": "`ed25519`, the service's public key, and its signature of the body, both hexadecimal",
        "schema": {"type": "string"},
    }
}
Digest = Annotated[str, Path(pattern=SHA256, description="sha256 of the zip, 64 hex digits")]


def target_views(service: Service) -> list[TargetView]:
    """The targets of the server, and whether each can be measured on now."""
    return [
        TargetView.of(target, environment, service.quarantine(target.id)) for target, environment in service.targets()
    ]


def result_routes(service: Service) -> APIRouter:
    """Returns the routes that read results, artifacts and targets."""
    router = APIRouter(tags=["results"], responses=PROBLEM_RESPONSES)

    @router.get("/best")
    def find_best(query: Annotated[BestQuery, Query()]) -> BestMatchView:
        """The best result for a workload on a target, and how well it matches."""
        return BestMatchView.of(service.find_best(query.to_question(default_target_id(service))))

    @router.get(
        "/artifacts/{digest}",
        response_class=Response,
        responses={
            200: {"content": {"application/zip": {}}, "headers": _SIGNATURE},
            304: {"description": "The client already has it"},
        },
    )
    def get_artifact(digest: Digest, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        """A kernel as a zip: source, cubin, plan, and a manifest that describes its launch. A response header has its
        signature."""
        headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=31536000, immutable"}
        content = service.artifact(digest)
        seen = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
        if headers["ETag"] in seen or "*" in seen:
            return Response(status_code=304, headers=headers)
        headers[SIGNATURE_HEADER] = service.signature(content)
        headers["Content-Disposition"] = f'attachment; filename="tuner-{digest[:12]}.zip"'
        return Response(content, headers=headers, media_type="application/zip")

    @router.get("/targets")
    def list_targets() -> list[TargetView]:
        """The GPUs of this server; the first is the default."""
        return target_views(service)

    return router
