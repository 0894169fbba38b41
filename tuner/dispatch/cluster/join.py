"""How the members of a cluster join it: the server's dispatcher, a worker's process, the scheduler's process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuner.collector import spare_collector
from tuner.core.trial.limits import Limits
from tuner.dispatch.cluster.calls import WorkerCalls
from tuner.dispatch.cluster.dispatcher import ClusterDispatcher
from tuner.dispatch.cluster.nodes import prepare_process, run_scheduler, run_worker
from tuner.dispatch.cluster.security import check_address, security_for
from tuner.dispatch.factory import make_evaluators

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of `tuner worker`."""

    #: ``auto``, ``simulated:<id>``, or ``none`` for a machine that only builds.
    gpu: str
    #: Number of simulated GPUs.
    num_simulated: int
    #: Number of parallel builds; None means as many as this machine's cores and memory allow.
    num_places: int | None
    #: Its name; by default the machine's name and the process id.
    name: str
    #: The address at which the server reaches it, and its port; with None and 0, Dask chooses them.
    host: str | None
    port: int
    build_cache: Path
    limits: Limits
    latency_s: float = 0.0
    build_s: float = 0.0
    #: Whether finals on a real card also measure PyTorch's time.
    torch_baseline: bool = False


def join_as_server(scheduler: str, tls: Path | None, *, insecure: bool) -> ClusterDispatcher:
    """The dispatcher for a cluster's workers.

    Raises:
        InvalidInput: the address is invalid, or the certificates are missing.
    """
    security = security_for(scheduler, tls, insecure=insecure)
    prepare_process()
    return ClusterDispatcher(scheduler, security)


def work(
    scheduler: str, tls: Path | None, options: WorkerOptions, announce: Callable[[str], None], *, insecure: bool
) -> None:
    """Measures and builds for a cluster until SIGTERM or SIGINT.

    Raises:
        InvalidInput: same as for `join_as_server`, or `options.gpu` is invalid.
        WorkerError: a card cannot be identified.
    """
    security = security_for(scheduler, tls, insecure=insecure)
    prepare_process()
    evaluators, why = make_evaluators(
        options.gpu,
        build_cache=options.build_cache,
        limits=options.limits,
        latency_s=options.latency_s,
        build_s=options.build_s,
        num_simulated=options.num_simulated,
        torch_baseline=options.torch_baseline,
        builds_here=False,  # the cluster's builds are done by `WorkerCalls`
    )
    log.info(why if evaluators else "No GPU: this worker only builds, and does not measure.")
    spare_collector()
    name = options.name or f"{socket.gethostname()}-{os.getpid()}"
    calls = WorkerCalls(name, evaluators, options.build_cache, options.limits, num_places=options.num_places)

    async def run() -> None:
        await run_worker(
            scheduler,
            security,
            calls.announcement,
            calls.answer,
            _stopped_by_signals(),
            name=name,
            host=options.host,
            port=options.port,
            announce=announce,
        )

    try:
        asyncio.run(run())
    finally:
        calls.close()


def schedule(
    host: str, port: int, tls: Path | None, announce: Callable[[str], None], *, plain: bool, insecure: bool
) -> None:
    """Runs a cluster's scheduler until SIGTERM or SIGINT.

    Raises:
        InvalidInput: the certificates are missing, or `plain` with an address beyond loopback.
    """
    protocol = "tcp" if plain else "tls"
    shown = f"[{host}]" if ":" in host else host
    check_address(f"{protocol}://{shown}:{port}")
    security = security_for(f"{protocol}://{shown}:{port}", tls, insecure=insecure)
    prepare_process()

    async def run() -> None:
        await run_scheduler(host, port, protocol, security, announce, _stopped_by_signals())

    asyncio.run(run())


def _stopped_by_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
