"""The composition root: settings -> store -> dispatcher -> service -> API -> server. No other module wires parts
together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tuner import logs
from tuner.api.app import create_app
from tuner.api.http.connection import protocol_with
from tuner.api.login.proxied import NotePeer, ProxyLogin
from tuner.collector import spare_collector
from tuner.core.access.caller import Role
from tuner.dispatch import Dispatcher, LocalDispatcher
from tuner.dispatch.factory import make_evaluators
from tuner.dispatch.late import LateDispatcher
from tuner.errors import TunerError
from tuner.private import private_files
from tuner.search import SearchProcesses, search_here
from tuner.server.listening import TAKEN_AT_ONCE, connections_that_fit, listen, quietly, streams_beside_requests
from tuner.server.standby import Standby
from tuner.server.telemetry import Telemetry
from tuner.service import Service
from tuner.service.metrics import Observer
from tuner.service.runner.searching import Search
from tuner.service.webhooks.policy import WebhookPolicy
from tuner.service.webhooks.sender import WebhookSender
from tuner.settings import Settings, is_loopback
from tuner.store import Store
from tuner.store.access import tokens
from tuner.winners import ShippedWinners
from tuner.wire.responses.webhooks import job_ended_body

log = logging.getLogger(__name__)

_OR_LOGIN = ", or a login through a listed proxy"

#: Default maximum number of processes that choose candidates.
_MAX_SEARCH_PROCESSES = 8

#: After this time, open requests and streams are cut off, seconds.
_GRACE_S = 5


class OpenToAll(TunerError):
    """Other machines could reach the service without a token."""


def open_service(
    settings: Settings,
    give_up: Callable[[], None],
    observers: Sequence[Observer] = (),
    search: Search = search_here,
) -> tuple[Service, Standby | None, str]:
    """The service for `settings.data`, not started; the watcher of its leadership, if it is shared; and a sentence
    about its GPUs. `give_up` ends the server; `observers` are called for every recorded trial; `search` starts a
    search, in this process or another.

    Raises:
        StoreError: the data folder or its database cannot be used.
        InvalidInput: `settings.gpu` is invalid.
        OpenToAll: it would listen beyond loopback without tokens.
    """
    store = Store.open(settings.data, settings.database_url, settings.lock_patience_s, shared=settings.standby)
    standby: Standby | None = None
    try:
        _check_reach(settings, store)
        if settings.standby:
            late = LateDispatcher()
            dispatcher: Dispatcher = late
            why = "Standing by."
            standby = Standby(store.leadership, lambda: log.info(_fill(late, settings, store.build_cache)), give_up)
        else:
            dispatcher, why = _dispatcher(settings, store.build_cache)
            if store.leadership.may_be_lost:
                standby = Standby(store.leadership, lambda: None, give_up, is_alone=True)
    except BaseException:
        store.close()
        raise

    def leads() -> bool:
        return not settings.standby or (standby is not None and standby.leads)

    service = Service(
        store,
        dispatcher,
        disk_limit_bytes=settings.disk_limit_bytes,
        finals=settings.finals,
        max_ahead=settings.max_ahead,
        observers=observers,
        leads=leads,
        leader_trouble=lambda: "" if standby is None else standby.trouble,
        winners=ShippedWinners(),
        retention=settings.retention,
        webhook_sender=_webhook_sender(settings, store, leads),
        search=search,
        always_asks=bool(settings.login_header),
    )
    return service, standby, why


@contextmanager
def _searching(settings: Settings) -> Iterator[Search]:
    """Where candidates are chosen: in other processes, so that requests do not wait for the interpreter. A server that
    runs no jobs starts none."""
    most = 0 if settings.gpu == "none" and settings.scheduler is None else settings.search_processes
    if most is None:
        most = min(len(os.sched_getaffinity(0)), _MAX_SEARCH_PROCESSES)
    if most == 0:
        yield search_here
        return
    processes = SearchProcesses(most)
    try:
        yield processes.search
    finally:
        processes.close()


def _webhook_sender(settings: Settings, store: Store, leads: Callable[[], bool]) -> WebhookSender | None:
    """The sender of webhooks, if there are allowed hosts."""
    hosts, networks = settings.allowed_webhooks
    if not hosts:
        return None
    policy = WebhookPolicy(hosts=hosts, networks=networks, secret=settings.webhook_secret.get_secret_value())
    return WebhookSender(store, policy, partial(job_ended_body, root_path=settings.root_path), leads=leads)


def _dispatcher(settings: Settings, build_cache: Path) -> tuple[Dispatcher, str]:
    """The dispatcher: this machine, or if a scheduler is named, its cluster."""
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
        when_idle=settings.when == "idle",
        torch_baseline=settings.torch_baseline,
    )
    return LocalDispatcher(evaluators), why


def _fill(late: LateDispatcher, settings: Settings, build_cache: Path) -> str:
    """Lets a standby server measure; returns a sentence about its GPUs."""
    dispatcher, why = _dispatcher(settings, build_cache)
    late.fill(dispatcher)
    return why


#: Maximum time that a computing thread keeps the interpreter while others wait, seconds. A request changes threads
#: several times, and a search computes in separate threads: with Python's 5 ms, each of these changes could take that
#: long.
_SWITCH_S = 0.0005


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restores the signal handlers after the block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@private_files()
@_signals_kept()
def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; `announce` is called with the address once it responds.

    Raises:
        ListenError: host and port cannot be bound.
        TunerError: as `open_service`.
    """
    logs.configure(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_S)
    ending = _Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ending.on_signal)
    with listen(settings.host, settings.port) as listener, _searching(settings) as search:
        telemetry = Telemetry() if settings.opentelemetry else None
        service, standby, why = open_service(settings, ending.give_up, [telemetry] if telemetry else [], search)
        log.info(why)
        try:
            service.start()
            most = connections_that_fit(settings.max_connections)
            app: Any = create_app(
                service,
                settings.host_names,
                settings.request_deadline_s,
                requests_per_s=settings.requests_per_s,
                root_path=settings.root_path,
                max_streams=streams_beside_requests(most),
                login=_login(settings),
            )
            if telemetry is not None:
                app = telemetry.around(app)
            if settings.trusted_proxies:
                app = ProxyHeadersMiddleware(app, settings.trusted_proxies)
            server = _Server(_config(NotePeer(app), settings, most))
            ending.take_over(server, service)
            if standby is not None:
                standby.start()
            spare_collector()
            announce(_address(listener) + settings.root_path)
            server.run(sockets=[listener])
            service.drain(0.0 if ending.is_hasty else settings.drain_deadline_s)
        finally:
            if standby is not None:
                standby.stop()
            service.close()
            if telemetry is not None:
                telemetry.close()


def _config(app: Any, settings: Settings, most: int) -> uvicorn.Config:
    """The server configuration for the application, with at most `most` connections."""
    return uvicorn.Config(
        app,
        http=protocol_with(settings.request_deadline_s, most),
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=most + 1,
        backlog=TAKEN_AT_ONCE,
        proxy_headers=False,
    )


def _login(settings: Settings) -> ProxyLogin | None:
    """Which proxies may name the user; None if no proxy may."""
    if not settings.login_header:
        return None
    return ProxyLogin(
        header=settings.login_header.lower(),
        peers=settings.login_networks,
        role=Role(settings.login_role),
        admins=settings.login_admin_names,
    )


def _check_reach(settings: Settings, store: Store) -> None:
    """Raises:
    OpenToAll: other machines reach the address, and there are no tokens."""
    with store.read() as session:
        needs_token = tokens.has_any(session)
    if needs_token or settings.login_header:
        log.info(
            ("A token is required%s: `tuner token` lists and creates them."), _OR_LOGIN if settings.login_header else ""
        )
    elif not is_loopback(settings.host) and not settings.insecure:
        raise OpenToAll(
            f"host {settings.host} is reachable from other machines, but there are no tokens; create one with tuner "
            f"token create --data {settings.data}, listen on 127.0.0.1, or accept the risk with --insecure"
        )


class _Server(uvicorn.Server):
    """The server, which leaves signals to `_Ending`, and whose event loop does not flood the log."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the server, and limits the log lines of its event loop."""
        asyncio.get_running_loop().set_exception_handler(quietly())
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves all signals to `_Ending`."""
        yield


class _Ending:
    """Signal handling: the first signal ends everything in order, a second one ends the process immediately."""

    def __init__(self) -> None:
        self._is_asked = False
        #: Whether to end without waiting for the cards.
        self.is_hasty = False
        self._server: uvicorn.Server | None = None
        self._service: Service | None = None

    def take_over(self, server: uvicorn.Server, service: Service) -> None:
        """Registers what must be ended. Before that, the first signal raises, so that opened resources are closed."""
        self._server, self._service = server, service

    @property
    def should_exit(self) -> bool:
        """Whether shutdown has begun. Event streams look up SIGTERM's handler by this name, and then end."""
        return self._is_asked

    def give_up(self) -> None:
        """Shuts the server down in order, without waiting for the cards, since another server may run the jobs now. May
        be called from any thread."""
        self.is_hasty = True
        if not self._is_asked:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Begins shutdown. Recorded data is safe at any moment, so the second signal ends the process immediately."""
        if self._is_asked:
            os.write(2, b"asked twice: the service ends at once\n")
            os._exit(128 + number)
        self._is_asked = True
        if self._server is None or self._service is None:
            raise SystemExit(0)
        self._server.should_exit = True
        self._service.begin_drain()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
