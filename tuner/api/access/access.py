"""Who sends a request, and whether it is allowed: tokens, sessions and rates, before anything is done."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import quote

from anyio import to_thread
from fastapi import Depends
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.http.errors import problem_response, store_problem
from tuner.api.http.guard import refuse, takes_form
from tuner.api.http.rates import WINDOW_S, Rates
from tuner.api.http.rendering import render_error, wants_page
from tuner.api.http.session import CALLER, CSRF_HEADER, SESSION, Session, read_session
from tuner.api.login.proxied import BadLogin, ProxyLogin, session_of_proxy
from tuner.core.access.caller import LOCAL, Caller, Role, Token
from tuner.errors import StoreError
from tuner.service import Service
from tuner.wire.base.root_path import outside
from tuner.wire.requests.problems import problem

#: Paths that need no token: probes, the login, its page's files, and the list of routes.
_OPEN = ("/livez", "/readyz", "/login", "/favicon.ico", "/openapi.json")
_OPEN_FOLDER = "/static/"
#: Paths that require a different role than their method implies.
_ADMINS = re.compile(r"(/ui)?/(access|audit|quotas|tokens)(?![^./:])")
_ROLES = {
    **dict.fromkeys(("/metrics", "/targets", "/whoami", "/logout"), Role.WORKER),
}
_READING = ("GET", "HEAD", "OPTIONS")


def role_for(method: str, path: str) -> Role | None:
    """The role that a request needs; None if it needs no token."""
    if path in _OPEN or path.startswith(_OPEN_FOLDER):
        return None
    if _ADMINS.match(path):
        return Role.ADMIN
    return _ROLES.get(path) or (Role.READ if method in _READING else Role.SUBMIT)


def caller_of(request: Request) -> Caller:
    """The sender of the request, as a parameter of a route."""
    caller: Caller = request.scope[CALLER]
    return caller


async def _asker(request: Request) -> Caller:
    """Same as `caller_of`, as a dependency. FastAPI would run a plain function in another thread, just to read a
    dict."""
    return caller_of(request)


Asker = Annotated[Caller, Depends(_asker)]


@dataclass(frozen=True, kw_only=True)
class _Refusal(Exception):
    """Why a request is refused."""

    status: int
    detail: str


class AccessGuard:
    """ASGI middleware: 401 without a token, 403 if its role is not sufficient, 429 after too many requests."""

    def __init__(self, app: ASGIApp, service: Service, rates: Rates, login: ProxyLogin | None) -> None:
        """`login` lists the proxies that may name the user; none by default."""
        self._app = app
        self._login = login
        self._access = service.access
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request, or stores the caller in its scope and calls the application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            scope[CALLER] = await self._caller(scope)
        except _Refusal as refusal:
            return await _answer(refusal, scope, receive, send)
        except StoreError as error:
            return await store_problem(error)(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> Caller:
        connection = HTTPConnection(scope)
        address = connection.client.host if connection.client else ""
        needed = role_for(scope["method"], scope["path"])
        if needed is None:
            return replace(LOCAL, role=Role.READ, address=address)
        is_on = self._access.is_known_to_be_on
        if is_on is None:
            is_on = await to_thread.run_sync(lambda: self._access.is_on)
        if not is_on:
            return replace(LOCAL, address=address)
        caller = await self._proxied(connection, address)
        if caller is None:
            token = await self._token(connection, address)
            caller = Caller(owner=token.owner, role=token.role, token_id=token.id, address=address)
        who = caller.token_id or caller.owner
        if not self._rates.take(caller.token_id or f"login {caller.owner}"):
            raise _Refusal(status=429, detail=f"{who} sends too many requests; wait {WINDOW_S} s, and send fewer")
        if not caller.role.allows(needed):
            remedy = "ask an admin for a token with that role" if caller.token_id else "ask an admin"
            raise _Refusal(status=403, detail=f"{who} has the role {caller.role}, but {needed} is required; {remedy}")
        return caller

    async def _proxied(self, connection: HTTPConnection, address: str) -> Caller | None:
        """The user named by a listed proxy, unless the request has a token."""
        if self._login is None or "authorization" in connection.headers:
            return None
        try:
            caller = self._login.caller(connection, address)
        except BadLogin as error:
            raise _Refusal(status=401, detail=str(error)) from error
        if caller is not None:
            key = await to_thread.run_sync(lambda: self._access.session_key)
            _check_proof(connection, session_of_proxy(caller, key))
        return caller

    async def _token(self, connection: HTTPConnection, address: str) -> Token:
        """The token in the header if there is one, otherwise the session's token."""
        scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
        if scheme:
            secret = secret.strip()
            is_bearer = scheme.lower() == "bearer"
            if is_bearer and (token := self._access.remembered(secret)) is not None:
                return token
            token = await self._rates.token_for(address, self._access.by_secret, secret) if is_bearer else None
            if token is None:
                if not self._rates.guessed(address):
                    raise _Refusal(status=429, detail=f"too many wrong tokens; wait {WINDOW_S} s")
                raise _Refusal(status=401, detail="the token is unknown, expired or revoked; ask an admin for another")
            return token
        if not connection.cookies:
            raise _Refusal(
                status=401,
                detail=f"a token is required: send `Authorization: Bearer …`, or log in at {outside('/login')}",
            )
        session = await to_thread.run_sync(read_session, connection, self._access.session_key)
        token = await to_thread.run_sync(self._access.by_session, session.token_id, session.csrf) if session else None
        if session is None or token is None:
            raise _Refusal(status=401, detail=f"the session has expired; log in at {outside('/login')}")
        _check_proof(connection, session)
        return token


def _check_proof(connection: HTTPConnection, session: Session) -> None:
    """Stores the session in the request's scope; refuses a change that was not sent from a page of that session."""
    # A form has the proof in a field, which its route checks.
    is_safe = connection.scope["method"] in _READING or takes_form(connection.scope["path"])
    if not is_safe and not session.is_ours(connection.headers.get(CSRF_HEADER)):
        detail = f"a change in a session needs the header {CSRF_HEADER}, which its pages send, or a token"
        raise _Refusal(status=403, detail=detail)
    connection.scope[SESSION] = session


async def _answer(refusal: _Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """The refusal as a problem document; browsers are redirected to the login."""
    headers: dict[str, str] = {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tuner"'
    if refusal.status == 429:
        headers["Retry-After"] = str(WINDOW_S)
    document = problem(refusal.status, refusal.detail)
    request = Request(scope)
    if scope["method"] not in _READING:
        return await refuse(problem_response(document, {**headers, "connection": "close"}), scope, receive, send)
    response: Response = problem_response(document, headers)
    if wants_page(request) and "text/html" in request.headers.get("accept", ""):
        query = f"?{request.url.query}" if request.url.query else ""
        response = render_error(document, headers)
        if refusal.status == 401:
            response = RedirectResponse(f"/login?next={quote(scope['path'] + query, safe='')}", 303)
    return await response(scope, receive, send)
