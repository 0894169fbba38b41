"""Refuses requests addressed to another host name, or sent from a page of another site.

Any page can make a browser send requests here. With DNS rebinding, the browser even treats this server as the page's
origin, so the page can read the responses; such a request names the page's host. A numeric address cannot be rebound.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.http.errors import problem_response
from tuner.wire.requests.problems import problem

#: Methods without side effects, which links on other sites may use.
_READING = ("GET", "HEAD", "OPTIONS")
#: The header's values for requests from this server's pages, or directly from the user.
_OWN_SITES = (None, "same-origin", "none")


def host_of(netloc: str) -> str | None:
    """The host of `host`, `host:port` or `[address]:port`, in lower case; None if it has a different form."""
    try:
        parts = urlsplit(f"//{netloc}")
        _ = parts.port
    except ValueError:
        return None
    is_whole = parts.netloc == netloc and "@" not in netloc
    return parts.hostname if is_whole else None


def is_own(host: str | None, allowed: Collection[str]) -> bool:
    """Whether `host` names this server: `localhost`, a numeric address, or a name that is `allowed`."""
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost") or host in allowed or "*" in allowed:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class OriginGuard:
    """ASGI middleware: responds with 403 to foreign hosts and origins."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str] = ()) -> None:
        self._app = app
        # Only names: on a numeric address or localhost, another port is another server.
        self._allowed = frozenset(host.lower() for host in allowed_hosts if not is_own(host.lower(), ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds with 403, or calls the application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        detail = self._refusal(scope["method"], Headers(scope=scope))
        if not detail:
            return await self._app(scope, receive, send)
        return await problem_response(problem(403, detail))(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> str:
        """The reason for refusing the request; empty if it is accepted."""
        host = headers.get("host", "")
        if not is_own(host_of(host), self._allowed):
            return (
                f"{host!a} is not a name of this server; use its address, or ask its administrator to "
                "add the host to TUNER_ALLOWED_HOSTS"
            )
        for origin in headers.getlist("origin"):
            if not self._is_own_origin(origin, host):
                return f"a page of {origin!a} sent this request; only pages of this server may do so"
        if method not in _READING and headers.get("sec-fetch-site") not in _OWN_SITES:
            return "a page of another site sent this request; only pages of this server may do so"
        return ""

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Whether the page has this server's host and port, or an allowed host name."""
        scheme, _, netloc = origin.partition("://")
        if scheme not in ("http", "https"):
            return False
        return netloc.lower() == host.lower() or host_of(netloc) in self._allowed
