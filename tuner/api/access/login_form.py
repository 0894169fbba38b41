"""The dashboard's login: exchanges a token for a session."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from tuner.api.access.access import Asker, caller_of
from tuner.api.http.rates import Rates
from tuner.api.http.rendering import render_form
from tuner.api.http.root_path import without_root_path
from tuner.api.http.session import begin_session, end_session, session_of
from tuner.core.access.caller import Caller
from tuner.errors import Forbidden
from tuner.service import Service
from tuner.wire.responses.access import CallerView

Next = Annotated[str, Query(alias="next", max_length=2000)]


def local_path(wanted: str) -> str:
    """The path `wanted` if it is on this server, otherwise the front page."""
    parts = urlsplit(wanted)
    is_local = not parts.scheme and not parts.netloc and wanted.startswith("/") and "\\" not in wanted
    is_safe = is_local and wanted.isprintable() and not wanted.startswith("//")
    return without_root_path(wanted) if is_safe else "/"


def add_login(router: APIRouter, service: Service, rates: Rates) -> None:
    """Adds the login pages, which are not part of the API, and the route for the caller's identity."""
    access = service.access

    @router.get("/login", include_in_schema=False)
    def show_login(wanted: Next = "/") -> Response:
        """The login form; not shown by a service without tokens."""
        if not access.is_on:
            return RedirectResponse("/", 303)
        return render_form("admin/login.html", wanted=local_path(wanted), problem="")

    @router.post("/login", include_in_schema=False)
    async def log_in(request: Request, wanted: Next = "/") -> Response:
        """Starts a session for the token in the form."""
        fields = parse_qs((await request.body()).decode(errors="replace"))
        secret, target = fields.get("token", [""])[0].strip(), local_path(wanted)
        address = caller_of(request).address
        token = await rates.token_for(address, access.by_secret, secret)
        if token is None:
            if not rates.guessed(address):
                return render_form(
                    "admin/login.html", 429, wanted=target, problem="Too many wrong tokens: wait ten seconds."
                )
            said = "This token is unknown, expired or revoked."
            return render_form("admin/login.html", 401, wanted=target, problem=said)
        caller = Caller(owner=token.owner, role=token.role, token_id=token.id, address=address)
        await to_thread.run_sync(access.note, caller, "session.begin", token.id)
        response = RedirectResponse(target, 303)
        begin_session(response, request, token, access.session_key)
        return response

    @router.post("/logout", include_in_schema=False)
    async def log_out(request: Request, caller: Asker) -> Response:
        """Ends the session on the server too, since there may be copies of the cookie."""
        session = session_of(request)
        fields = parse_qs((await request.body()).decode(errors="replace"))
        if session is not None and not session.is_ours(fields.get("csrf", [""])[0]):
            raise Forbidden("the form belongs to another session; open the page again")
        response = RedirectResponse("/login" if access.is_on else "/", 303)
        if session is not None and session.token_id:
            await to_thread.run_sync(access.end_session, caller, session.token_id, session.csrf)
        end_session(response)
        return response

    @router.get("/whoami")
    def who_am_i(caller: Asker) -> CallerView:
        """The token's owner and role."""
        return CallerView(owner=caller.owner, role=caller.role, token_id=caller.token_id, needs_token=access.is_on)
