"""Form data from the pages: parsed, and checked to come from a page of the sender's session."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.http.session import session_of
from tuner.errors import Forbidden


async def form_of(request: Request) -> dict[str, str]:
    """The form's non-empty fields; if a name is repeated, its last value.

    Raises:
        Forbidden: the form was sent with a session, but not from a page of that session.
    """
    fields = {
        name: values[-1].strip() for name, values in parse_qs((await request.body()).decode(errors="replace")).items()
    }
    session = session_of(request)
    if session is not None and not session.is_ours(fields.get("csrf", "")):
        raise Forbidden("the form belongs to another session; open the page again")
    return {name: value for name, value in fields.items() if name != "csrf" and value}


Form = Annotated[dict[str, str], Depends(form_of)]


class DropEmptyFields:
    """ASGI middleware: removes empty fields from a form sent with GET, since pages treat them as missing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application with the non-empty fields."""
        if scope["type"] == "http" and (scope["path"] in ("/", "/.json") or scope["path"].startswith("/ui/")):
            given = [field for field in scope["query_string"].split(b"&") if not field.endswith(b"=")]
            scope = {**scope, "query_string": b"&".join(given)}
        await self._app(scope, receive, send)
