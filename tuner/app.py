"""The composition root: settings -> store -> dispatcher -> service -> API -> server. Nothing else wires."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from tuner.api.app import create_app
from tuner.api.connection import protocol_with
from tuner.dispatch import Dispatcher, LocalDispatcher
from tuner.dispatch.factory import make_evaluators
from tuner.dispatch.late import LateDispatcher
from tuner.errors import TunerError
from tuner.service import Service
from tuner.settings import Settings
from tuner.standby import Standby
from tuner.store import Store
from tuner.winners import ShippedWinners

log = logging.getLogger(__name__)

#: After that, requests and streams still open are cut, seconds.
_GRACE_S = 5


class ListenError(TunerError):
    """The address cannot be listened on; the message says why."""


def open_service(settings: Settings, give_up: Callable[[], None]) -> tuple[Service, Standby | None, str]:
    """The service over `settings.data`, not started; what watches over its leadership, where others may have it; and a
    sentence on what it measures with. `give_up` ends the server.

    Raises:
        StoreError: the data folder or its database cannot be used.
        InvalidInput: `settings.gpu` is no choice.
    """
    store = Store.open(settings.data, settings.database_url, settings.lock_patience_s, shared=settings.standby)
    standby: Standby | None = None
    if settings.standby:
        late = LateDispatcher()
        dispatcher: Dispatcher = late
        why = "Standing by."
        standby = Standby(store.leadership, lambda: log.info(_fill(late, settings, store.build_cache)), give_up)
    else:
        try:
            dispatcher, why = _dispatcher(settings, store.build_cache)
        except BaseException:
            store.close()
            raise
        if store.leadership.may_be_lost:
            standby = Standby(store.leadership, lambda: None, give_up)
    service = Service(
        store,
        dispatcher,
        disk_limit_bytes=settings.disk_limit_bytes,
        finals=settings.finals,
        max_ahead=settings.max_ahead,
        leads=lambda: not settings.standby or (standby is not None and standby.leads),
        winners=ShippedWinners(),
    )
    return service, standby, why


def _dispatcher(settings: Settings, build_cache: Path) -> tuple[Dispatcher, str]:
    """What measures: this machine, or where a scheduler is named its cluster."""
    if settings.scheduler is not None:
        from tuner.dispatch.cluster.join import join_as_server

        dispatcher = join_as_server(settings.scheduler, settings.tls, insecure=settings.insecure)
        return dispatcher, f"Measuring on the workers of {settings.scheduler}."
    evaluators, why = make_evaluators(
        settings.gpu,
        build_cache=build_cache,
        limits=settings.limits,
        latency_s=settings.simulated_latency_s,
        build_s=settings.simulated_build_s,
    )
    return LocalDispatcher(evaluators), why


def _fill(late: LateDispatcher, settings: Settings, build_cache: Path) -> str:
    """Has a server that stood by measure; a sentence on what with."""
    dispatcher, why = _dispatcher(settings, build_cache)
    late.fill(dispatcher)
    return why


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; `announce` gets the address once it answers.

    Raises:
        ListenError: host and port cannot be bound.
        TunerError: as `open_service`.
    """
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with listen(settings.host, settings.port) as listener:
        service, standby, why = open_service(settings, lambda: os.kill(os.getpid(), signal.SIGTERM))
        log.info(why)
        try:
            service.start()
            if standby is not None:
                standby.start()
            app = create_app(service, settings.host_names, settings.request_deadline_s)
            http = protocol_with(settings.request_deadline_s)
            config = uvicorn.Config(app, http=http, log_config=None, lifespan="off", timeout_graceful_shutdown=_GRACE_S)
            announce(_address(listener))
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            if standby is not None:
                standby.stop()
            service.close()


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwinds, so that what was opened is closed. The server has handlers of its own while it runs, and sends the
    signal again, to this one, when it has drained."""
    raise SystemExit(0)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, bound before anything is opened: a taken port is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: only then asyncio switches Nagle's algorithm off, which costs 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}; give another --port") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
