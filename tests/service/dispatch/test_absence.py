"""A worker without a scheduler waits for it, with clear and infrequent log lines."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import socket
import time
from pathlib import Path

import pytest

from tests.service.dispatch.clusters import HERE, Members
from tests.service.dispatch.contracts import Watched
from tests.support.waiting import wait_until
from tuner.dispatch.cluster import absence
from tuner.dispatch.cluster.absence import Absence, why_silent
from tuner.dispatch.cluster.certificates import create
from tuner.dispatch.cluster.security import security_for

PLAIN = security_for("tcp://127.0.0.1:1", None)


def dead_address() -> str:
    """An address on which nothing listens."""
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        return f"tcp://{HERE}:{taken.getsockname()[1]}"


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == absence.__name__ and one.levelno == level]


def test_a_worker_whose_scheduler_is_not_there_says_once_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.JOIN_S", 0.2)
    monkeypatch.setattr("tuner.dispatch.cluster.nodes.REJOIN_PAUSE_S", 0.01)
    caplog.set_level(logging.INFO, absence.__name__)
    members, address, asked = Members(PLAIN, tmp_path), dead_address(), []

    async def scheduler() -> str:
        return address

    real = Absence.tell

    async def tell(self: Absence, *arguments: object) -> None:
        await real(self, *arguments)  # type: ignore[arg-type]
        asked.append(arguments)

    monkeypatch.setattr(Absence, "tell", tell)
    members.run_worker([Watched()], scheduler())
    wait_until(lambda: len(asked) >= 3)
    [line] = lines(caplog, logging.WARNING)
    assert re.match(rf"waiting for the scheduler {re.escape(address)} for \d+ s, since 20", line)
    assert line.endswith(": Connection refused; this worker joins when the scheduler responds")
    assert lines(caplog, logging.INFO) == [f"joining the scheduler {address}"]
    members.close()


def test_the_longer_the_wait_the_longer_the_silence_up_to_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    caplog.set_level(logging.INFO, absence.__name__)
    away, said_at = Absence("tcp://here:1"), []
    for now in map(float, range(16, 3601, 16)):
        asyncio.run(away.tell(PLAIN, "closed"))
        if len(lines(caplog, logging.WARNING)) > len(said_at):
            said_at.append(now)
    assert said_at == [16, 80, 160, 320, 640, 1248, 1856, 2464, 3072]
    away.end()
    assert lines(caplog, logging.INFO)[-1] == "joined the scheduler tcp://here:1, after 3600 s"
    away.begin_again()
    asyncio.run(away.tell(PLAIN, "closed"))
    assert [line.partition(",")[0] for line in lines(caplog, logging.WARNING)[-2:]] == [
        "the connection to the scheduler tcp://here:1 was lost; this worker rejoins when the scheduler responds",
        "waiting for the scheduler tcp://here:1 for 0 s",
    ]


def test_a_scheduler_that_refuses_or_whose_certificate_is_not_ours_is_told_from_one_that_is_not_there(
    tmp_path: Path,
) -> None:
    """Another server answers in its place."""
    ours, theirs = (create(tmp_path / name, ["any"], 1)[0] for name in ("ours", "theirs"))

    async def why(own: Path) -> str:
        listens = security_for(f"tls://{HERE}:1", ours).get_listen_args("scheduler")["ssl_context"]
        async with await asyncio.start_server(lambda _, writer: writer.close(), HERE, 0, ssl=listens) as server:
            address = f"tls://{HERE}:{server.sockets[0].getsockname()[1]}"
            return await why_silent(address, security_for(address, own))

    assert asyncio.run(why(theirs)).startswith("its certificate was rejected: ")
    assert asyncio.run(why(ours)).startswith("a server answers there, but accepts no workers")
    assert asyncio.run(why_silent(dead_address(), PLAIN)) == "Connection refused"
    assert "ame" in asyncio.run(why_silent("tcp://nowhere.invalid:8786", PLAIN))


# In CI, the test above has a server that is no scheduler.
@pytest.mark.soak
def test_why_a_scheduler_is_silent_is_said_in_words(tmp_path: Path) -> None:
    ours, theirs = (create(tmp_path / name, ["any"], 1)[0] for name in ("ours", "theirs"))
    members = Members(security_for("tls://127.0.0.1:1", ours), tmp_path)
    address = members.scheduler.address

    def why(address: str, tls: Path | None = None) -> str:
        found = asyncio.run(why_silent(address, security_for(address, tls, insecure=True)))
        gc.collect()  # a connection that was left open would be reported now
        return found

    assert why(address, theirs).startswith("its certificate was rejected: ")
    assert why(address, ours).startswith("a server answers there, but accepts no workers")
    assert why(dead_address()) == "Connection refused"
    assert "ame" in why("tcp://nowhere.invalid:8786")
    members.close()
