"""The service below a path of a site: the prefix is removed from request paths, and added to links."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.wire.base.root_path import answering_below, outside, root_path

#: Attributes of HTML whose value is a path of the application.
_LINKS = re.compile(r'(\s(?:href|src|action|formaction|data-[a-z]+)=")(?=/(?!/))')


def link_from_outside(html: str) -> str:
    """A page whose links, styles, scripts, forms and streams start with the root path."""
    root = root_path()
    return _LINKS.sub(lambda found: found[1] + root, html) if root else html


class BelowRootPath:
    """ASGI middleware: treats `/tuner/jobs` as `/jobs`, and makes every response's links begin with `/tuner`.

    A request without the root path is accepted as well: proxies may have removed it, and probes bypass them.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._root_path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application with its own path."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_located(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "location" in headers:
                    headers["location"] = outside(own_path(headers["location"], Headers(scope=scope).get("host", "")))
            await send(message)

        with answering_below(self._root_path):
            if scope["path"] == self._root_path:
                query = scope["query_string"].decode("ascii", "replace")
                response = RedirectResponse("/" + (f"?{query}" if query else ""), 307)
                return await response(scope, receive, send_located)
            return await self._app({**scope, "path": without_root_path(scope["path"])}, receive, send_located)


def without_root_path(path: str) -> str:
    """An external path as the application knows it."""
    root = root_path()
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def own_path(location: str, host: str) -> str:
    """Where the application redirects to: also `/jobs` for `http://host/jobs`, which its router uses to correct a
    path."""
    parts = urlsplit(location)
    return parts._replace(scheme="", netloc="").geturl() if parts.netloc == host else location
