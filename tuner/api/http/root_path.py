"""The service under a path of a site: removes the prefix from request paths, and adds it to links."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.wire.base.root_path import answering_below, outside, root_path

#: HTML attributes whose value is a path of the application.
_LINKS = re.compile(r'(\s(?:href|src|action|formaction|data-[a-z]+)=")(?=/(?!/))')


def link_from_outside(html: str) -> str:
    """The page with the root path added to the addresses of its links, styles, scripts, forms and streams."""
    root = root_path()
    return _LINKS.sub(lambda found: found[1] + root, html) if root else html


class BelowRootPath:
    """ASGI middleware: treats `/tuner/jobs` as `/jobs`, and adds `/tuner` to the links of every response.

    Requests without the root path are accepted too: a proxy may have removed it, and probes bypass proxies.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._root_path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application with the internal path."""
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
    """The application's path for an external path."""
    root = root_path()
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def own_path(location: str, host: str) -> str:
    """The redirect's target as a path; the router uses `http://host/jobs` for `/jobs` when it corrects a path."""
    parts = urlsplit(location)
    return parts._replace(scheme="", netloc="").geturl() if parts.netloc == host else location
