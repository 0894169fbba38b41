"""The processes of a cluster, based on Dask: a scheduler that only keeps the list of workers, and a worker with one
operation.

Both support only the operations that they need from each other, so that a peer cannot make them run a function, and
nothing is unpickled from a connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn

import dask
from distributed import Scheduler, Worker
from distributed.protocol import pickle
from distributed.security import Security

from tuner.dispatch.cluster.absence import Absence
from tuner.dispatch.cluster.messages import Announcement, encode
from tuner.errors import WorkerError

#: The key of a worker's announcement in the scheduler's data about it.
ANNOUNCEMENT = "tuner"
#: The only operation that we add to a worker.
CALL = "tuner_call"

#: A worker without a heartbeat for this long is considered gone, seconds; a live one sends one about every second.
WORKER_TTL_S = 10.0
#: Maximum time for a worker to leave, seconds.
_CLOSE_S = 10.0
#: A worker that has not joined within this time, seconds, starts again, since the response may have been lost.
JOIN_S = 15.0
#: Pause between a worker's attempts to join, seconds.
REJOIN_PAUSE_S = 1.0

#: The operations that a scheduler and a worker both keep, and all operations that each of the two keeps.
_OF_BOTH = {"identity", "connection_stream", "worker-status-change"}
_OF_SCHEDULER = _OF_BOTH | {"register-worker", "unregister", "heartbeat_worker", "keep-alive"}
_OF_WORKER = _OF_BOTH | {"ping", CALL, "close", "remove-worker"}


class PickleRefused(WorkerError):
    """A peer sent a pickle."""


def prepare_process() -> None:
    """Makes this process refuse pickles, and switches off Dask's own monitoring, which costs time."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PickleRefused("a peer sent a pickle; a cluster never unpickles anything")

    pickle.loads = refuse
    dask.config.set({
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "30s",
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.admin.system-monitor.disk": False,
        "distributed.admin.system-monitor.host-cpu": False,
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.comm.timeouts.connect": "5s",
        "distributed.comm.timeouts.tcp": "15s",
    })  # fmt: skip
    logging.getLogger("distributed").setLevel(logging.WARNING)


class ClusterScheduler(Scheduler):
    """Keeps the list of workers, but schedules nothing."""

    def __init__(self, host: str, port: int, protocol: str, security: Security) -> None:
        super().__init__(
            host=host,
            port=port,
            protocol=protocol,
            security=security,
            worker_ttl=WORKER_TTL_S,
            dashboard=False,
            extensions={},  # Dask's own extensions would send plugins to the workers, as pickles
        )
        _keep_only(self.handlers, self.stream_handlers, _OF_SCHEDULER)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Opens no port, since Dask's pages would be accessible without a certificate."""


class ClusterWorker(Worker):
    """Reports this machine's targets and build slots to the scheduler, and responds to calls."""

    def __init__(
        self,
        scheduler: str,
        security: Security,
        announcement: Announcement,
        answer: Callable[[object], Awaitable[bytes]],
        *,
        name: str,
        host: str | None,
        port: int,
        folder: str,
    ) -> None:
        text = encode(announcement).decode()
        super().__init__(
            scheduler,
            name=name,
            nthreads=1,
            security=security,
            host=host,
            port=port,
            local_directory=folder,
            memory_limit=0,
            death_timeout=JOIN_S,
            dashboard=False,
            extensions={},
            startup_information={ANNOUNCEMENT: lambda _: text},
            resources={card.uuid: 1.0 for card in announcement.cards} | {"build": announcement.num_places},
        )

        async def call(payload: object) -> bytes:
            return await answer(payload)

        self.handlers[CALL] = call
        _keep_only(self.handlers, self.stream_handlers, _OF_WORKER)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Opens no port, like the scheduler."""

    async def heartbeat(self) -> None:
        """A heartbeat must be answered in time; otherwise the scheduler is lost, even if the connection is still
        open.
        """
        try:
            await asyncio.wait_for(super().heartbeat(), WORKER_TTL_S)
        except TimeoutError:
            await self.close(nanny=False, reason="the scheduler does not answer heartbeats")


def _ignore(**_: object) -> None:
    """Replaces operations that are not needed but may be sent."""


def _keep_only(handlers: dict[str, Any], streamed: dict[str, Any], names: set[str]) -> None:
    """Deletes all request operations, and ignores all streamed ones, except those that are named."""
    for name in set(handlers) - names:
        del handlers[name]
    for name in set(streamed) - names:
        streamed[name] = _ignore


async def run_scheduler(
    host: str, port: int, protocol: str, security: Security, announce: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Runs a scheduler until `stop` is set; `announce` is called with its address."""
    async with ClusterScheduler(host, port, protocol, security) as scheduler:
        announce(scheduler.address)
        await stop.wait()


async def run_worker(
    scheduler: str,
    security: Security,
    announcement: Callable[[], Announcement],
    answer: Callable[[object], Awaitable[bytes]],
    stop: asyncio.Event,
    *,
    name: str,
    host: str | None,
    port: int,
    announce: Callable[[str], None],
) -> None:
    """Joins the cluster, and rejoins whenever the scheduler was lost, until `stop` is set."""
    stopping = asyncio.create_task(stop.wait())
    absence = Absence(scheduler)

    def joined(address: str) -> None:
        absence.end()
        announce(address)

    with tempfile.TemporaryDirectory(prefix="tuner-worker-") as folder:
        while not stop.is_set():
            node = ClusterWorker(
                scheduler,
                security,
                announcement(),
                answer,
                name=f"{name}-{os.getpid()}",
                host=host,
                port=port,
                folder=folder,
            )
            life = asyncio.create_task(_live(node, joined))
            try:
                await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                life.cancel()
                (ended,) = await asyncio.gather(life, return_exceptions=True)
                with suppress(TimeoutError):
                    await asyncio.wait_for(node.close(nanny=False, timeout=2), _CLOSE_S)
            if not stop.is_set():
                if ended is None:
                    absence.begin_again()
                else:
                    telling = asyncio.create_task(absence.tell(security, str(ended)))
                    await asyncio.wait({telling, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    telling.cancel()
                    await asyncio.gather(telling, return_exceptions=True)
                await asyncio.wait({stopping}, timeout=REJOIN_PAUSE_S)
    stopping.cancel()


async def _live(node: ClusterWorker, joined: Callable[[str], None]) -> str | None:
    """Runs the worker from joining until the end; returns the error if joining failed, empty if there was no answer in
    time."""
    try:
        await node
    except TimeoutError:
        return ""
    except (OSError, ValueError, RuntimeError) as error:
        return str(error.__cause__ or error)
    joined(node.address)
    await node.finished()
    return None
