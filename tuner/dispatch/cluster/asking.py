"""Queries a cluster's scheduler once for its workers, for diagnosis."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed.comm.core import connect
from distributed.core import send_recv
from distributed.security import Security

from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.nodes import ANNOUNCEMENT, prepare_process
from tuner.dispatch.cluster.security import security_for
from tuner.errors import WorkerError


@dataclass(frozen=True, kw_only=True)
class Roll:
    """The members of a cluster."""

    #: Workers that this version supports, and their cards by target.
    num_workers: int
    cards: dict[str, int]
    #: Why this version cannot use the other workers, by address.
    refused: dict[str, str]


def call_the_roll(scheduler: str, tls: Path | None, *, insecure: bool, deadline_s: float) -> Roll:
    """The members of the cluster whose scheduler is at the address `scheduler`.

    Raises:
        InvalidInput: the address is invalid, or the certificates are missing.
        WorkerError: the scheduler does not respond within `deadline_s`, or does not accept the certificates.
    """
    security = security_for(scheduler, tls, insecure=insecure)
    prepare_process()
    try:
        found = asyncio.run(asyncio.wait_for(_ask(scheduler, security), deadline_s))
    except TimeoutError as error:
        raise WorkerError(f"{scheduler} does not answer within {deadline_s:g} s") from error
    except OSError as error:  # includes Dask's own error of a closed connection, and SSL's
        raise WorkerError(f"{scheduler} does not answer: {error}") from error
    cards, refused, num_workers = dict[str, int](), dict[str, str](), 0
    for address, worker in found["workers"].items():
        try:
            announcement = messages.decode_announcement(str(worker.get(ANNOUNCEMENT)))
        except messages.NotUnderstood as error:
            refused[address] = str(error)
            continue
        num_workers += 1
        for card in announcement.cards:
            cards[card.target.id] = cards.get(card.target.id, 0) + 1
    return Roll(num_workers=num_workers, cards=cards, refused=refused)


async def _ask(scheduler: str, security: Security) -> dict[str, Any]:
    comm = await connect(scheduler, deserialize=False, **security.get_connection_args("client"))
    try:
        answer: dict[str, Any] = await send_recv(comm, op="identity")
        return answer
    finally:
        comm.abort()
