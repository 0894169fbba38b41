"""A service in this process: the real job loop, the API without a port, and a database in the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from tuner.api.app import create_app
from tuner.core.model.rates import use_fits
from tuner.python.client_here import ClientHere
from tuner.server.app import open_service
from tuner.settings import Settings

#: Not a real server: the address of requests that stay inside the process.
_ADDRESS = "http://localhost"


def default_data() -> Path:
    """The default folder of the service in a process."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner" / "service"


@contextmanager
def service_here(data: Path | None, gpu: str | None, token: str | None) -> Iterator[ClientHere]:
    """A client of a service that runs for the duration of the block.

    Raises:
        StoreError: the folder cannot be used, e.g. because another process uses it.
        InvalidInput: `gpu` is invalid, or a fit of the folder is.
    """
    folder = data or Path(os.environ.get("TUNER_DATA") or default_data())
    given = {"data": folder, "host": "127.0.0.1", "standby": False} | ({} if gpu is None else {"gpu": gpu})
    settings = Settings.model_validate(given)
    use_fits(settings.fits_folder)
    service, _, why = open_service(settings, lambda: None)
    with ExitStack() as stack:
        stack.callback(service.close)
        service.start()
        portal = stack.enter_context(start_blocking_portal())
        transport = _InProcess(create_app(service, requests_per_s=0), portal)
        client = stack.enter_context(ClientHere(_ADDRESS, token=token, transport=transport))
        client.data, client.why, client.beside = folder, why, service.beside
        yield client


class _InProcess(httpx.BaseTransport):
    """Sends requests to an application in a thread of this process."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The application's whole response."""
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        content = await response.aread()
        return httpx.Response(response.status_code, headers=response.headers, content=content)
